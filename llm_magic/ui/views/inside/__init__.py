"""Static views of what was found inside a model: one module for each kind of object.

`view` is what `inside.shown.Shown` calls. Shades are steps of one hue whose lightness falls, so the
order holds for every kind of colour vision; each sets background and text alike, so it reads the
same on light and dark pages; and where a viewer removes styles, marks and tables remain.
"""

from collections.abc import Callable
from typing import Any

from llm_magic.inside.attention import Attention
from llm_magic.inside.attribution import Attribution, Norms
from llm_magic.inside.causes import Causes
from llm_magic.inside.inspection import Inspection
from llm_magic.inside.lab import Lab
from llm_magic.inside.lens import Lens
from llm_magic.inside.strengths import Strengths

from ..mime import Fragment
from . import attention, attribution, causes, lab, lens, overview, strengths

VIEWS: dict[type, Callable[[Any], tuple[str, str]]] = {
    Inspection: lambda shown: (overview.page(shown), overview.plain(shown)),
    Lens: lambda shown: (lens.page(shown), lens.plain(shown)),
    Attention: lambda shown: (attention.page(shown), attention.plain(shown)),
    Norms: lambda shown: (attribution.norms_page(shown), attribution.norms_plain(shown)),
    Attribution: lambda shown: (attribution.page(shown), attribution.plain(shown)),
    Causes: lambda shown: (causes.page(shown), causes.plain(shown)),
    Strengths: lambda shown: (strengths.page(shown), strengths.plain(shown)),
    Lab: lambda shown: (lab.page(shown), lab.plain(shown)),
}


def view(shown: object) -> Fragment:
    """The view of an object of the room `inside`."""
    return Fragment(*VIEWS[type(shown)](shown))


def frame(rows: list[dict[str, Any]]) -> Any:
    """Rows as a pandas DataFrame, or as they are where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)
