"""The words that Python and the C kernels exchange: commands, the head of a job, the team's flags.

The C side has no numbers of its own for them: `declarations` is compiled in front of its sources.
"""

from ..forward import POINTS

# What job[0] asks for, numbered in this order.
COMMANDS = ("nothing", "step", "pack", "help", "dismiss", "unembed")
COMMAND = {name: number for number, name in enumerate(COMMANDS)}
# The int32 words at the head of a job, in this order; a step's rows follow at HEAD.
WORDS = ("command", "rows", "wanted", "top", "taps")
WORD = {name: index for index, name in enumerate(WORDS)}
HEAD = 16
PACK = 4  # word of a job at which a pack_t begins: 8-byte aligned
TAPS = 6  # word of a step at which the address of its taps stands: 8-byte aligned
# Words of team_t (c/team.h) that Python reads and writes, as indexes of int32.
TEAM = {"stop": 33, "helpers": 48, "spin": 49}
TEAM_BYTES = 512  # at least the size of team_t


def declarations() -> str:
    """The table as C enumerations.

    >>> print(declarations())
    enum { NOTHING, STEP, PACK, HELP, DISMISS, UNEMBED };
    enum { JOB_COMMAND, JOB_ROWS, JOB_WANTED, JOB_TOP, JOB_TAPS, JOB_PACK = 4, JOB_AT = 6, ...
    enum { POINT_RESID_PRE, POINT_Q, POINT_K, POINT_V, POINT_Z, POINT_ATTN_OUT, ...
    enum { TEAM_STOP = 33, TEAM_HELPERS = 48, TEAM_SPIN = 49, TEAM_BYTES = 512 };
    """
    words = [f"JOB_{name.upper()}" for name in WORDS]
    words += [f"JOB_PACK = {PACK}", f"JOB_AT = {TAPS}", f"JOB_HEAD = {HEAD}"]
    commands = [name.upper() for name in COMMANDS]
    points = [f"POINT_{name.upper()}" for name in POINTS]
    team = [f"TEAM_{name.upper()} = {index}" for name, index in TEAM.items()]
    team.append(f"TEAM_BYTES = {TEAM_BYTES}")
    lists = (commands, words, points, team)
    return "\n".join(f"enum {{ {', '.join(names)} }};" for names in lists)
