"""The chat page of a server: one document with its script and its style.

Nothing comes from elsewhere, and it holds no secret: the token is in the address behind #, which
browsers do not send.
"""

import base64
import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
_SCRIPT = (_HERE / "page.js").read_text(encoding="utf-8")
_STYLE = (_HERE / "page.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


PAGE = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>llm_magic</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
<main>
<h1>Chat with <span id="model">the model of this notebook</span></h1>
<div id="turns" role="log" aria-live="polite"></div>
<form id="ask">
<label for="text">Message</label>
<textarea id="text" rows="3" autofocus></textarea>
<p><button id="send">Send</button> <button id="stop" type="button" disabled>Stop</button>
<button id="clear" type="button">New chat</button> <span id="note" role="status"></span></p>
</form>
</main>
<script>{_SCRIPT}</script>
</html>
"""

HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
