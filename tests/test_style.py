"""Style rules that a machine can check: in the complete project, or in the packages listed per rule."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = ("simlab", "experiments", "figures", "scripts", "tests", "examples", "notebooks")
MAX_LINES, MAX_TEST_NAME = 500, 60

# Packages that follow the rules on functions, docstrings and words. Extend the lists, never shorten them.
LIBRARY = (
    "simlab/checkpoints",
    "simlab/diagnosis",
    "simlab/engines",
    "simlab/formats",
    "simlab/integrations/verl",
    "simlab/metrics",
    "simlab/models",
    "simlab/objectives",
    "simlab/serving",
    "simlab/tasks",
    "simlab/theory",
    "simlab/training",
    "figures",
)
TESTS = (
    "tests/checkpoints",
    "tests/diagnosis",
    "tests/figures",
    "tests/integrations",
    "tests/serving",
    "tests/tasks",
    "tests/test_architecture.py",
    "tests/test_style.py",
)
COMMANDS = tuple(
    f"simlab/cli/{name}.py" for name in ("bench", "calibrate", "explain_command", "probe", "theory")
)
SUMMARIES = (
    "simlab",
    "experiments",
    "figures",
    "scripts",
    "examples",
    "tests/cli",
    "tests/models",
    "tests/rollout",
)

PARTICIPLES = (
    "been begun drawn found given gone heard held kept known laid left made said seen shown told taught"
)
# Constructors of grids, in the order of words of a sweep; an unpickler's hook; an adjective.
LOCAL_PARTICIPLES = {
    "simlab/sweeps/grids.py: listed",
    "simlab/sweeps/grids.py: sampled",
    "simlab/diagnosis/slime.py: _ragged",
}
# Functions named after what they return: engine builders, metrics (their names are columns), verl's words.
NOUN_PHRASES = {
    "simlab/diagnosis/slime.py: _ragged",
    "simlab/diagnosis/token_view.py: signed_log",
    "simlab/engines/builders.py: calibrated_cache",
    "simlab/engines/builders.py: calibrated_fp8",
    "simlab/engines/builders.py: calibrated_nvfp4",
    "simlab/engines/builders.py: unified_fp8",
    "simlab/metrics/pressure.py: clipped_tokens",
    "simlab/metrics/pressure.py: rejected_sequence_fraction",
    "simlab/metrics/pressure.py: rejected_token_fraction",
    "simlab/metrics/probability_bins.py: binned_mean",
    "simlab/metrics/probability_bins.py: controlled_rms_log_rho",
    "simlab/objectives/batch.py: masked_mean",
    "simlab/objectives/batch.py: masked_sum",
    "simlab/objectives/extras.py: _capped_k3",
    "simlab/training/checkpoints.py: named_arrays",
}
UNCHECKED = ("diagnosis", "__pycache__", "py.typed")
# Replaced names: no identifier, keyword, config field or column of these may come back.
REPLACED_NAMES = (
    "along_k AnyObjective DOSES Lane SUFFIXES Sampler Suffix adder adders begun_lanes discount dose dosed "
    "false_alarm first_params keep_lanes keep_programs lane lane_of lanes leaves_out made_steps "
    "mistakes one_order projecting sampler_params steps_made twin twins warmup which_card write_lanes "
)
# All packages of simlab but `diagnosis`, whose fitted classifier holds old names.
PROSE = [
    str(each.relative_to(ROOT)) for each in sorted((ROOT / "simlab").iterdir()) if each.name not in UNCHECKED
]
PRIVATE_WORDS = (
    r"\btaught\b",
    r"\bteach",
    r"\btwins?\b",
    r"\bhonest",
    r"\bplanted\b",
    r"\bheard\b",
    r"\bwhoever\b",
    r"\bfar apart\b",
    r"(?<!there )\bis no [a-z]",
    r"(?<!there )\bare none\b",
    r"\bto the bit\b",
    r"\bbeside\b",
    r"\brefuses?\b",
    r"\btells?\b",
    r"\balike\b",
    r"\blaws?\b",
    r"\bthe lab\b",
)


@cache
def read_trees(*places: str) -> dict[str, tuple[str, ast.Module]]:
    """Return source and tree of every Python file of some packages or files, by path."""
    paths = [path for place in places for path in (ROOT / place).rglob("*.py")]
    paths += [ROOT / place for place in places if place.endswith(".py")]
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(paths)}
    return {path: (source, ast.parse(source)) for path, source in sources.items()}


def list_functions(*places: str) -> list[tuple[str, ast.FunctionDef]]:
    """Return all functions except properties, with the path of their file."""
    return [
        (path, node)
        for path, (_, tree) in read_trees(*places).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and not any("property" in ast.unparse(each) for each in node.decorator_list)
    ]


def read_names(node: ast.AST) -> list[str]:
    """Return the identifiers of one node, and a string that could be a field or a column."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return [name]
        case ast.keyword(arg=str(name)) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Constant(value=str(text)) if text.isidentifier():
            return [text]
    return []


def test_files_have_at_most_500_lines():
    long = {path for path, (source, _) in read_trees(*CODE).items() if source.count("\n") > MAX_LINES}
    assert not long


def test_modules_have_telling_unique_names():
    modules = defaultdict(list)
    for path in read_trees("simlab"):
        modules[Path(path).name].append(path)
    assert not {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"} & set(modules)
    allowed = {"__init__.py", "catalog.py", "config.py"}
    assert not {name: paths for name, paths in modules.items() if len(paths) > 1 and name not in allowed}


def test_classes_have_unique_names():
    classes = defaultdict(list)
    for path, (_, tree) in read_trees("simlab", "experiments", "figures", "scripts").items():
        # Each script that serves an engine in its own environment has one class `Server`.
        if not path.startswith("simlab/serving/servers/"):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    classes[node.name].append(path)
    assert not {name: paths for name, paths in classes.items() if len(paths) > 1}


@pytest.mark.parametrize("package", SUMMARIES + TESTS)
def test_docstrings_start_with_a_verb_or_noun(package):
    wrong = [
        f"{path}: {docstring.splitlines()[0]}"
        for path, (_, tree) in read_trees(package).items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and (docstring := ast.get_docstring(node))
        if re.match(r"(What|How|Whether|Where|Who|Which)\b", docstring)
    ]
    assert not wrong


def test_summaries_of_functions_are_imperative():
    nouns = r"[^A-Z]|(The|An?|All|Each|Mean|Weights?|Largest|Smallest|Fraction)\b"
    wrong = [
        f"{path}: {docstring.splitlines()[0]}"
        for path, node in list_functions("simlab", "figures", "scripts")
        if (docstring := ast.get_docstring(node))
        if re.match(nouns, docstring)
    ]
    assert not wrong


@pytest.mark.parametrize("package", LIBRARY + COMMANDS)
def test_functions_are_not_bare_participles(package):
    names = [(path, node.name) for path, node in list_functions(package)]
    wrong = [
        f"{path}: {name}"
        for path, name in names
        if (first := name.strip("_").split("_")[0]) in PARTICIPLES.split() or re.search(r"[a-z]{2}ed$", first)
        if first != "embed"
    ]
    assert set(wrong) <= NOUN_PHRASES, sorted(set(wrong) - NOUN_PHRASES)


def test_functions_are_no_single_participle():
    names = [
        (path, node.name) for path, node in list_functions("simlab", "experiments", "figures", "scripts")
    ]
    wrong = [
        f"{path}: {name}"
        for path, name in names
        if name.strip("_") in PARTICIPLES.split() or re.fullmatch(r"_*[a-z]+[a-z]{2}ed", name)
    ]
    assert set(wrong) <= LOCAL_PARTICIPLES, sorted(set(wrong) - LOCAL_PARTICIPLES)


@pytest.mark.parametrize("package", CODE)
def test_replaced_names_stay_away(package):
    wrong = [
        f"{path}: {name}"
        for path, (_, tree) in read_trees(package).items()
        for node in ast.walk(tree)
        for name in read_names(node)
        if name in REPLACED_NAMES.split() and path != "tests/test_style.py"
    ]
    assert not wrong


def test_names_of_tests_have_at_most_60_characters():
    names = [node.name for _, node in list_functions("tests")]
    assert not [name for name in names if name.startswith("test_") and len(name) > MAX_TEST_NAME]


@pytest.mark.parametrize("package", [*PROSE, "figures", "examples"])
def test_no_private_words(package):
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path, (source, _) in read_trees(package).items()
        for number, line in enumerate(source.splitlines(), 1)
        if any(re.search(word, line) for word in PRIVATE_WORDS)
    ]
    assert not wrong
