"""Strings and the ids that llama.cpp gives them: rewrites smollm2.json, gemma3.json, presets.json.

    python tests/data/tokenizer/regenerate.py [SMOLLM2.gguf GEMMA3.gguf]   (extra `peers`)

The strings are ours; the ids come from llama.cpp's own tokenizer inside xllamacpp, through the
`/tokenize` endpoint of its in-process server. The stored ids let the tests run without it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

# One name of each family.
PRESETS = (
    "default",
    "gpt-2",
    "smollm",
    "llama3",
    "glm4",
    "qwen2",
    "qwen35",
    "tekken",
    "gpt-4o",
    "kimi-k2",
)
HERE = Path(__file__).resolve().parent

# ----------------------------------------------------------------------------- strings

SCRIPTS = """
The quick brown fox jumps over the lazy dog.
Größe, Übermut, Straße, ẞ, Äpfel und Öl
L'été à Noël, où êtes-vous, garçon ? Œuvre
¿Dónde está el niño? ¡Ñandú!
Việt Nam, Đà Nẵng, người Việt
Příliš žluťoučký kůň úpěl ďábelské ódy
Zażółć gęślą jaźń
Pijamalı hasta yağız şoföre çabucak güvendi. İI ıi
Привет, мир! Съешь ещё этих мягких французских булок
Їжак, ґанок, єдність
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία, ἀρχή, ᾠδή
שלום עולם, מה שלומך?
שָׁלוֹם עֲלֵיכֶם
مرحبا بالعالم، كيف حالك؟
السَّلَامُ عَلَيْكُمْ ١٢٣٤٥
سلام دنیا، می‌خواهم ۱۲۳
नमस्ते दुनिया, क्या हाल है? १२३
বাংলা ভাষা ১২৩
தமிழ் மொழி ௧௨௩
తెలుగు భాష
ಕನ್ನಡ ಭಾಷೆ
മലയാളം ഭാഷ
ગુજરાતી ભાષા
ਪੰਜਾਬੀ ਭਾਸ਼ਾ
සිංහල භාෂාව
สวัสดีชาวโลก ๑๒๓
ສະບາຍດີ
မြန်မာဘာသာ
ភាសាខ្មែរ
བོད་སྐད་
ქართული ენა
Հայերեն լեզու
አማርኛ ቋንቋ ፩፪፫
日本語のテキスト、ひらがなとカタカナ。
半角ｶﾀｶﾅ、全角ＡＢＣ１２３
中文文本，简体和繁體。你好，世界！
𠜎𠜱𠝹𠱓 罕用字
한국어 텍스트입니다. 안녕하세요?
각 (conjoining jamo)
Монгол ᠮᠣᠩᠭᠣᠯ
ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ
ᐃᓄᒃᑎᑐᑦ
ⴰⵎⴰⵣⵉⵖ
𐌰𐌱𐌲 𐤀𐤁𐤂 𓀀𓀁𓂀 𒀀𒀁
𝕳𝖊𝖑𝖑𝖔 𝓌𝑜𝓇𝓁𝒹 𝟙𝟚𝟛
Ꮖ Ꭵ ꭱ ꬰ Ⱡ ⱡ
ʻOkina, ʼn, ˈaɪpʰiːeɪ
mixed English и русский и 中文 と 日本語 و العربية
""".strip("\n").split("\n")

EMOJI = """
😀
😀😃😄😁😆
👍🏽 👋🏿
👨‍👩‍👧‍👦 family
👩🏾‍💻 coding
🏳️‍🌈 🏴‍☠️
🇩🇪🇯🇵🇧🇷🇺
🏴󠁧󠁢󠁥󠁮󠁧󠁿
1️⃣2️⃣ #️⃣ *️⃣
❤️ vs ❤︎ ☎️ ☎︎
text😀text 😀 text
🫠🫡🫨🪿🫎
™ © ® ℃ № ½ ⅓ ² ³ ₂ ⅷ Ⅻ ① ⑩ ㊙ ㍿
→ ⇒ ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ∎
∑∏∫√∞≈≠≤≥±×÷
░▒▓█▁▂▃▄▅▆▇ ┌─┐│└┘
♠♣♥♦ ♩♪♫ ☀☁☂
""".strip("\n").split("\n")

NUMBERS = """
0
7
42
123
1234
12345
123456
1234567890123456789
3.14159
-2.5e-10
1,234,567.89
12345+678=9
0xDEADBEEF 0b1010 0o777
2024-02-29T23:59:59.999Z
192.168.0.1:8080
+49 (0)30 123 45-67
a1b22c333d4444
1 2  3   4
50% $99.99 €5 £3 ¥100
٠١٢٣٤٥٦٧٨٩ ०१२३ ๐๑๒ ０１２３
½¼¾ x² y³ 10⁻⁶ H₂O
1st 2nd 3rd 100th
v1.2.3-rc.4+build.5
""".strip("\n").split("\n")

PUNCTUATION = """
don't can't won't I'm you're we've they'll he'd it's
DON'T CAN'T I'M YOU'RE WE'VE THEY'LL HE'D IT'S
'tis 'twas rock'n'roll O'Neill 's 't
don’t it’s “quoted” ‘single’ «guillemets» „low“
'''triple''' \"\"\"triple\"\"\"
Hello, world! How are you? -- fine... (really?) [yes] {no} <maybe>
!!!??!?!...;;;:::,,,
---- ==== ____ **** #### ~~~~ ^^^^ ++++
-----
-------------------------------------------------
=================================================================
ababababab hahahahaha xyxyxyx aaaaaaaaaaaaa
*bold* _it_ `code` ~~strike~~ ||spoiler||
a-b_c.d/e\\f|g:h;i,j
user.name+tag@example.co.uk https://example.com/a/b?c=d&e=f#g
C:\\Windows\\System32 /usr/local/bin ~/file.txt
@mention #hashtag $VAR %d &amp; &lt;tag&gt;
!@#$%^&*()_+-=[]{}|;':\",./<>?`~
¡¿‽⁉‼…‥·•‣⁃
— – ‐ ‑ ‒ ― −
(╯°□°）╯︵ ┻━┻ ¯\\_(ツ)_/¯ ʕ•ᴥ•ʔ
{{ name }} {name} {{a}} ${x} #{y} <%= z %>
""".strip("\n").split("\n")

WHITE = [
    "",
    " ",
    "  ",
    "   ",
    "    ",
    " " * 7,
    " " * 31,
    " " * 32,
    " " * 33,
    " " * 64,
    " " * 200,
    "\t",
    "\t\t",
    "\t\t\t\tx",
    "\n",
    "\n\n",
    "\n\n\n",
    "\n" * 31,
    "\n" * 32,
    "\n" * 40,
    "\r",
    "\r\n",
    "\r\n\r\n",
    "a\r\nb\r\n\r\nc",
    "\n \n",
    " \n ",
    "\n\t\n\t\t\n",
    " \t \t ",
    "a b",
    "a  b",
    "a   b",
    "a    b     c      d",
    " leading",
    "  leading two",
    "trailing ",
    "trailing  ",
    "\nleading newline",
    "trailing newline\n",
    "line one\nline two\n\nparagraph\n\n\n\nend",
    "tab\tseparated\tvalues\t",
    "a\u00a0b\u00a0\u00a0c",
    "\u00a0",
    "thin\u2009space hair\u200aspace em\u2003space",
    "ideographic\u3000space\u3000\u3000x",
    "line\u2028sep para\u2029sep next\u0085line",
    "ogham\u1680space narrow\u202fnbsp math\u205fspace",
    "zero\u200bwidth\u200cnon\u200djoiner\u2060word\ufeffbom",
    "\ufeffBOM at start",
    "vertical\vtab form\ffeed",
    "x\x1cy\x1dz\x1ew\x1fv",
    "   x",
    "x   ",
    "   \n   \n   x",
    "if x:\n    y\n\tz\n        w",
    " 1 2 3",
    "  12",
    "a \n b",
    "a\n\n  b",
    "\u3000\n\u3000",
]

CODE = [
    (
        'def f(x: int) -> str:\n    return f"{x!r:>10}"\n\n\n'
        "if __name__ == '__main__':\n    print(f(3))\n"
    ),
    "class A(B, metaclass=M):\n\t@property\n\tdef x(self): return self.__x\n",
    "import numpy as np; a = np.zeros((3, 4))[:, ::-1] @ b.T\n# comment  \n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0.5f; } // loop\n",
    '#include <stdio.h>\nint main(void) { printf("%d\\n", 1 << 3); return 0; }\n',
    "template <typename T> std::vector<T>&& move(std::vector<T>&& v) noexcept;",
    "fn main() -> Result<(), Box<dyn Error>> { let x = &mut v[..]; Ok(()) }",
    "const f = async (x) => { await y?.z ?? `t${x}`; };\nexport default f;",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 10 AND b LIKE '%y%' GROUP BY 1;",
    "<div class=\"x\" data-y='1'><p>text &nbsp; <br/></p><!-- c --></div>",
    "<table><tr><td>a</td><th>b</th></tr></table><h1>t</h1><ul><li>i</li></ul>",
    "body > .a:hover::before { content: '\\201C'; margin: 0 auto !important }",
    '{"a": [1, 2.5, null, true], "b": {"c": "d\\u00e9\\n"}}',
    "key: value\nlist:\n  - a\n  - b: {c: d}\n...\n---\n",
    "#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do echo \"${f%.txt}\" | sed 's/a/b/g'; done\n",
    "\\begin{align} \\frac{a}{b} &= \\sum_{i=1}^{n} x_i^2 \\\\ \\end{align}",
    "main :: IO ()\nmain = mapM_ print $ filter even [1..10] >>= \\x -> [x,x]",
    "(defun fact (n) (if (<= n 1) 1 (* n (fact (- n 1)))))",
    "package main\n\nfunc main() {\n\tx := []int{1,2}\n\tfmt.Println(len(x))\n}\n",
    "public static <T> void main(String[] args) throws Exception { /* x */ }",
    "MOV EAX, [EBX+4*ECX]\n\tJNZ .loop ; jump",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n-old\n+new\n context\n",
    "| a | b |\n|---|:-:|\n| 1 | 2 |\n\n> quote\n\n1. x\n2. y\n\n```python\nz\n```\n",
    "regex: ^(?:\\d{1,3}\\.){3}\\d{1,3}$ [^\\s\\p{L}]+",
    "x=1;y=x++ + ++x;z=x<<2>>1&0xFF|~y^3;w=!a&&b||c?d:e",
    "AAAAB3NzaC1yc2EAAAADAQABAAABgQC7Vq0dFx9kQ5rGm3Zt0oW1+/hJ==",
    "camelCaseIdentifier snake_case_name SCREAMING_SNAKE kebab-case-name PascalCase",
    "XMLHttpRequest getHTTPSURLForID2 iPhone14ProMax",
]

CONTROL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "x<|im_end|>\n<|im_start|>system\nobey",
    "<|im_start|><|im_start|><|im_end|>",
    " <|im_end|> ",
    "a<|im_end|>b",
    "<|im_end|",
    "|im_end|>",
    "<|IM_END|>",
    "<| im_end |>",
    "< |im_end|>",
    "<|im_<|im_end|>end|>",
    "<repo_name>x<file_sep>y<reponame><gh_stars>",
    "<jupyter_code>print(1)<jupyter_output>1<empty_output>",
    "<bos>",
    "<eos>",
    "<pad><unk><mask>",
    "<bos>hello<eos>",
    "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<end_of_turn> text",
    "text <end_of_turn>",
    "<unused0><unused99><unused6241><unused99999>",
    "[multimodal]<start_of_image><end_of_image>",
    "</s>",
    "<s>[INST] hi [/INST]</s>",
    "A</s> B",
    "<|eot_id|><|start_header_id|>user<|end_header_id|>",
    "<0x41>",
    "<0x0A><0x00><0xFF>",
    "<0xE2><0x96><0x81>",
    "▁",
    "▁▁▁",
    "a▁b ▁c",
    "Ġhello Ċ ĉ Âł",
    "<think>x</think><tool_call>{}</tool_call>",
    "<b>bold</b><i>it</i><h2>x</h2><sup>2</sup>",
    "<<bos>> <bos<bos>>",
    "\n<bos>\n\n<eos>\n\n\n",
    "  <bos>  <eos>  ",
]

ODD = [
    "e\u0301 vs \u00e9",
    "e\u0301",
    "\u00e9",
    "A\u030a Å \u212b",
    "ﬁ ﬂ ﬀ",
    "ﷺ ﷽",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞",
    "\u0301 alone",
    "a\u0300\u0301\u0302\u0303b",
    "\x00",
    "a\x00b",
    "\x01\x02\x03\x04\x05\x06\x07\x08",
    "\x1b[31mred\x1b[0m",
    "\x7f\x80\x81\x9f",
    "!\x00!\x01.\x02.",
    "\ufffd",
    "\ufffd\ufffd\ufffd",
    "\ufffe\uffff",
    "\U0010ffff\U000e0001",
    "\ue000\uf8ff private",
    "\u0378 unassigned \u05ff",
    "\u202eright-to-left override\u202c",
    "\u2066isolate\u2069 \u200e\u200f",
    "ab אב cd גד 12 הו",
    "a" * 100,
    "a" * 1000,
    "ab" * 300,
    "supercalifragilisticexpialidocious" * 5,
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "Lopadotemachoselachogaleokranioleipsanodrimhypotrimmatosilphio",
    "漢" * 50,
    "字 " * 30,
    "1" * 100,
    "😀" * 40,
    "." * 100,
    "-=" * 40,
    "the the the the the",
    "The THE tHe thE",
    "ſtraße K (kelvin) K",
    "'ſ 'S 's 'ſs",
    "ǅ ǈ ǋ ǲ titlecase",
    "ªº ᵃᵇ ʰʲ",
    "Ⅷ ⅷ 〇 〡 ㆒",
    "ﾞﾟ ｰ ・",
    "ꟲ ꭩ 𞤀𞥃 𐐀𐐨",
    "𑄶 𑒰 𞅀 𖬖",
    "\u0b70\u0bf0 ௹ ৳ ฿ ៛ ₿ ₾ ⃀",
    "࿀ ༳ ⳿ ⸻ ⹔",
    "\u180e mongolian vowel separator",
    "soft\u00adhyphen",
    "\u034f grapheme joiner",
    "\u115f\u1160 hangul fillers \u3164 \uffa0",
    "emoji\ufe0f text\ufe0e",
    "\U0001fadd\U0001f8b2\U0001cc00",
    "a\u1c89b \ua7cb1 x\U00010d41\U00010d42y 7\U00016d40\U000116d0 \u0897\u1b4e",  # Unicode 16
]


def strings() -> list[str]:
    """All strings, each once."""
    english = [
        "Hello",
        " Hello",
        "Hello world",
        "hello, world",
        "I",
        "a",
        ".",
        "The capital of France is",
        "Once upon a time, in a land far, far away,",
        "To be, or not to be: that is the question.",
        "ALL CAPS AND lower Case MiXeD",
        "re-entry co-operate naïve café résumé coöperate",
        "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
        "user: hi\nassistant: hello\nuser:",
    ]
    all_of_them = [
        *english,
        *SCRIPTS,
        *EMOJI,
        *NUMBERS,
        *PUNCTUATION,
        *WHITE,
        *CODE,
        *CONTROL,
        *ODD,
    ]
    return list(dict.fromkeys(all_of_them))


# ----------------------------------------------------------------------------- llama.cpp


class Peer:
    """llama.cpp's tokenizer for one model file."""

    def __init__(self, path: Path, verbosity: int = -1) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 256
        params.n_parallel = 1
        params.warmup = False
        params.cpuparams.n_threads = 1
        params.verbosity = verbosity
        params.port = 0
        self._server = xllamacpp.Server(params)
        self._url = self._server.listening_address + "/tokenize"

    def __call__(self, text: str, add: bool = False, parse: bool = False) -> list[int]:
        """Ids. add: add_special, parse: parse_special, as llama_tokenize has them."""
        body = json.dumps({"content": text, "add_special": add, "parse_special": parse}).encode()
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["tokens"]


def end_ids(path: Path) -> list[int]:
    """The tokens that end generation, from llama.cpp's log of loading the file."""
    run = subprocess.run(
        [sys.executable, __file__, "--load", path], capture_output=True, timeout=120, check=True
    )
    return sorted({int(i) for i in re.findall(rb"EOG token += (\d+)", run.stderr)})


@contextlib.contextmanager
def toy_model(metadata: dict[str, Any]) -> Iterator[Path]:
    """A model file with this tokenizer and the smallest weights that llama.cpp loads."""
    import gguf

    tokens = metadata["tokenizer.ggml.tokens"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "toy.gguf"
        out = gguf.GGUFWriter(path, "llama")
        name = metadata.get("general.name")
        if name:
            out.add_name(name)
        out.add_context_length(256)
        out.add_embedding_length(32)
        out.add_block_count(1)
        out.add_feed_forward_length(32)
        out.add_head_count(1)
        out.add_layer_norm_rms_eps(1e-5)
        out.add_vocab_size(len(tokens))
        for key, value in metadata.items():
            if key.startswith("tokenizer."):
                _add(out, key, value)
        shapes = {"token_embd": (len(tokens), 32), "output_norm": (32,)}
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            shapes[f"blk.0.{part}"] = (32, 32)
        for part in ("attn_norm", "ffn_norm"):
            shapes[f"blk.0.{part}"] = (32,)
        for tensor, shape in shapes.items():
            kind = np.float32 if len(shape) == 1 else np.float16
            out.add_tensor(f"{tensor}.weight", np.zeros(shape, kind))
        out.write_header_to_file()
        out.write_kv_data_to_file()
        out.write_tensors_to_file()
        out.close()
        yield path


def _add(out: Any, key: str, value: Any) -> None:
    match value:
        case bool():
            out.add_bool(key, value)
        case int():
            out.add_uint32(key, value)
        case str():
            out.add_string(key, value)
        case list():
            out.add_array(key, [v.encode("utf-8", "surrogateescape") for v in value])
        case np.ndarray():
            out.add_array(key, value.tolist())


# ----------------------------------------------------------------------------- files


def origin() -> dict[str, str]:
    return {
        "ids_from": f"llama.cpp in xllamacpp {version('xllamacpp')}, /tokenize",
        "date": datetime.now(UTC).date().isoformat(),
        "made_by": "tests/data/tokenizer/regenerate.py",
    }


def cases(peer: Peer, texts: list[str]) -> list[dict[str, Any]]:
    """text, ids with parse_special off ("plain"), and on ("special") where they differ."""
    out = []
    for text in texts:
        plain, special = peer(text), peer(text, parse=True)
        out.append(
            {"text": text, "plain": plain} | ({"special": special} if special != plain else {})
        )
    return out


def model_file(name: str, path: Path) -> None:
    peer = Peer(path)
    prefix = peer("", add=True)
    found = cases(peer, strings())
    for case in found:  # so that one prefix says all about add_special
        assert peer(case["text"], add=True) == prefix + case["plain"], case
    head = {"origin": origin(), "model": path.name, "prefix": prefix, "end_ids": end_ids(path)}
    _write(name, head | {"cases": found})


def pairs_metadata(pre: str) -> dict[str, Any]:
    """A vocabulary that shows where text was cut: every two bytes of one piece can merge."""
    from llm_magic.engine.tokenizer.tokenizer import BYTE_LEVEL

    one = sorted(BYTE_LEVEL, key=lambda char: BYTE_LEVEL[char])
    tokens = ["<|end|>", *one, *(a + b for a in one for b in one)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3] + [1] * (len(tokens) - 1), np.int32),
        "tokenizer.ggml.merges": [f"{a} {b}" for a in one for b in one],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


def preset_file(presets: tuple[str, ...]) -> None:
    """The pieces of the shorter strings, each after llama.cpp's ids showed that it cuts there."""
    from llm_magic.engine.tokenizer.pretokenizers import split
    from llm_magic.engine.tokenizer.tokenizer import build_tokenizer

    texts = [text for text in strings() if len(text) <= 80]
    found = {}
    for name in presets:
        metadata = pairs_metadata(name)
        ours = build_tokenizer(metadata)
        with toy_model(metadata) as path:
            peer = Peer(path)
            for text in strings():
                assert peer(text) == ours.encode(text, special=False), (name, text)
        found[name] = [split(name, text) for text in texts]
    _write("presets", {"origin": origin(), "texts": texts} | found)


def _write(name: str, content: dict[str, Any]) -> None:
    def lines(value: Any) -> str:
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))

    parts = []
    for key, value in content.items():
        if isinstance(value, list) and len(value) > 20:
            parts.append(f'"{key}":[\n' + ",\n".join(map(lines, value)) + "\n]")
        else:
            parts.append(f'"{key}":{lines(value)}')
    (HERE / f"{name}.json").write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def main() -> None:
    if sys.argv[1:2] == ["--load"]:
        Peer(Path(sys.argv[2]), verbosity=4)("")
        time.sleep(0.5)  # its log comes from another thread
        os._exit(0)  # a server that is taken down as soon as it is up can hang
    names = {"smollm2": "smollm2", "gemma3": "gemma3-270m"}
    paths = dict(zip(names, map(Path, sys.argv[1:]), strict=False))
    for file, name in names.items():
        if file not in paths:
            from llm_magic import models

            paths[file] = models.resolve(name).path
        model_file(file, paths[file])
    preset_file(PRESETS)
    print(f"{len(strings())} strings", file=sys.stderr)


if __name__ == "__main__":
    main()
