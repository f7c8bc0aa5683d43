"""A digest changes with the program and with nothing else; products are known while what they are made from is the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.evidence import Digests
from ci.evidence.digests import COMPILER, TOOLCHAIN, UnknownDigest, definitions, tree_text
from ci.evidence.products import read_products, write_products
from tests.evidence.repository import RECORD, SOURCE, record, repository, write
from tilec import pipeline

__all__ = ["repository"]

WORDS = {
    "docstring": ("Whether it is small.", "Whether a number is small enough."),
    "no docstring": ('    """Whether it is small."""\n', ""),
    "comment": ("return number < 3", "return number < 3  # three are many"),
    "blank lines": ("\n\n\ndef", "\n\n\n\n\ndef"),
    "formatting": ("return number < 3", "return (\n        number\n        < 3\n    )"),
}
PROGRAM = {"number": ("< 3", "< 4"), "name": ("number", "count"), "operator": ("<", "<="), "default": ("int)", "int = 2)")}


@pytest.mark.parametrize("edit", WORDS)
def test_words_change_no_digest(edit: str, repository: Path) -> None:
    before = Digests(repository).of("source:tilec")
    old, new = WORDS[edit]
    write(repository / "tilec/judge.py", SOURCE.replace(old, new))
    assert SOURCE.replace(old, new) != SOURCE and Digests(repository).of("source:tilec") == before


@pytest.mark.parametrize("edit", PROGRAM)
def test_another_program_has_another_digest(edit: str, repository: Path) -> None:
    before = {name: Digests(repository).of(name) for name in ("source:tilec", "source:tilec/judge.py", "source:other")}
    write(repository / "tilec/judge.py", SOURCE.replace(*PROGRAM[edit]))
    now = Digests(repository)
    assert now.of("source:tilec") != before["source:tilec"]
    assert now.of("source:tilec/judge.py") != before["source:tilec/judge.py"]
    assert now.of("source:other") == before["source:other"]


def test_built_files_that_git_ignores_do_not_count(repository: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    write(repository / ".gitignore", "/tilec/artifacts/\n")
    before = Digests(repository).of("source:tilec")
    write(repository / "tilec/artifacts/build/add.json", "{}")
    assert Digests(repository).of("source:tilec") == before
    write(repository / "tilec/new.json", "{}")  # not yet added
    assert Digests(repository).of("source:tilec") != before


def test_they_do_not_count_in_an_unpacked_archive(repository: Path) -> None:
    write(repository / ".gitignore", "__pycache__/\n/tilec/artifacts/\n/artifacts/*\n!/artifacts/README.md\n")
    before = Digests(repository).of("source:tilec")
    write(repository / "tilec/artifacts/build/add.json", "{}")
    assert Digests(repository).of("source:tilec") == before
    write(repository / "tilec/new.json", "{}")
    assert Digests(repository).of("source:tilec") != before


MOVED = {
    "renamed": {"tilec/other.py": SOURCE},
    "words": {"tilec/judge.py": SOURCE, "tilec/NOTES.md": "words"},
    "imports": {"tilec/judge.py": f"import re\nfrom tilec.other import size\n\n__all__ = ['judge']\n{SOURCE}"},
    "for type checkers": {"tilec/judge.py": f"if TYPE_CHECKING:\n    from tilec.other import size\n{SOURCE}"},
    "a file without definitions": {"tilec/judge.py": SOURCE, "tilec/__init__.py": '"""A package."""\n'},
}
NOT_MOVED = {
    "twice": {"tilec/judge.py": SOURCE, "tilec/more.py": SOURCE},
    "another": {"tilec/judge.py": SOURCE, "tilec/more.py": "x = 1\n"},
    "another name of an import": {"tilec/judge.py": f"from tilec.other import size as number\n{SOURCE}"},
    "gone": {"tilec/judge.py": "x = 1\n"},
}


@pytest.mark.parametrize("name", [*MOVED, *NOT_MOVED])
def test_definitions_count_wherever_they_stand(name: str, repository: Path) -> None:
    before = Digests(repository).of("source:tilec")
    (repository / "tilec/judge.py").unlink()
    for path, text in (MOVED | NOT_MOVED)[name].items():
        write(repository / path, text)
    assert (Digests(repository).of("source:tilec") == before) is (name in MOVED)


def test_a_file_split_in_two_is_as_good_as_one() -> None:
    one, other = "import a\n\n\nx = 1\n\n\ndef f():\n    from a import b\n    return b\n", "from c import d\n\ny = 2\n"
    split = definitions("def f():\n    from e import b\n    return b\n") + definitions("import a\ny = 2\nx = 1\n")
    assert sorted(definitions(one) + definitions(other)) == sorted(split)


def test_a_definition_that_moves_between_sources_leaves_their_one_digest(repository: Path) -> None:
    names = ("source:tilec", "source:other")
    before = Digests(repository).all_of(names)
    write(repository / "tilec/more.py", "x = 1\n")
    grown = Digests(repository).all_of(names)
    (repository / "tilec/more.py").rename(repository / "other/more.py")
    moved = Digests(repository).all_of(names)
    assert moved["sources"] == grown["sources"] != before["sources"]
    assert moved["source:tilec"] != grown["source:tilec"]


def test_texts_that_are_values_count() -> None:
    assert tree_text('x = "a"') != tree_text('x = "b"')
    assert tree_text('"a"') == tree_text('"b"')
    assert tree_text('"a"', docstrings=True) != tree_text('"b"', docstrings=True)


def test_what_is_not_there_has_no_digest(repository: Path) -> None:
    for name in ("source:gone", "version:gone", "cubin:sm_90a:gone-*", "cubin:sm_80", "weather:today"):
        with pytest.raises(UnknownDigest):
            Digests(repository).of(name)
    assert Digests(repository).of("version:numpy") == "2.1.0"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tilec/judge.py", SOURCE.replace("< 3", "< 4")),
        ("kernels_src/add.py", '"""Another text, which the frontend may read."""\n\nx = 1\n'),
        ("build.toml", '[build]\nkernels = "kernels_src"\n\n[[kernel]]\nname = "add"\nschedule = { warps = 8 }\n'),
        ("requirements.lock", "numpy==2.2.0\n"),
    ],
)
def test_products_are_unknown_once_what_they_are_made_from_changes(path: str, text: str, repository: Path) -> None:
    Digests(repository).of("cubin:sm_90a")
    write(repository / path, text)
    with pytest.raises(UnknownDigest, match=r"ci/products\.py"):
        Digests(repository).of("cubin:sm_90a")


def test_products_stay_known_where_an_edit_makes_none_of_them(repository: Path) -> None:
    before = Digests(repository).of("cubin:sm_90a")
    write(repository / "kernels_src/reference.py", "x = 2\n")
    write(repository / "other/tool.py", "x = 2\n")
    write(repository / "build.toml", (repository / "build.toml").read_text() + "\n# words\n")
    assert Digests(repository).of("cubin:sm_90a") == before


def test_a_result_of_one_kernel_does_not_rest_on_another(repository: Path) -> None:
    names = (
        "cubin:sm_90a:add-*", "cubin:sm_90a:add-*,mul-*", "cubin:sm_90a", "cubin:sm_90a:!mul-*", "cubin:sm_90a:*N=1,!mul-*",
        "cubin:sm_90a:!add-*", "ptx:sm_90a", "tir:mul-*",
    )  # fmt: skip
    before = Digests(repository).all_of(names)
    record(repository, {"cubin:sm_90a": {"mul-N=1": "changed"}})
    now = Digests(repository).all_of(names)
    assert [name for name in names if now[name] != before[name]] == [
        "cubin:sm_90a:add-*,mul-*",
        "cubin:sm_90a",
        "cubin:sm_90a:!add-*",
    ]


def test_the_record_of_products_comes_back(tmp_path: Path) -> None:
    write_products(tmp_path / "products.json", "made", RECORD)
    assert read_products(tmp_path / "products.json") == ("made", RECORD)


def test_every_source_of_a_stage_decides_a_product() -> None:
    """But for what words errors and watches time; a stage that reads another folder has to be named here."""
    watching = {"progress.py", "diagnostics/diagnostic.py", "diagnostics/visible.py", "diagnostics/internal_errors.py"}
    for stage in pipeline.STAGES:
        for path in {*pipeline.VOCABULARY_SOURCE, *stage.packages} - watching:
            inside = [name for name in COMPILER if f"tilec/{path}" == name or f"tilec/{path}".startswith(f"{name}/")]
            assert inside, f"{stage.name} reads tilec/{path}"
        assert {*stage.toolchain} <= {*TOOLCHAIN, "python"}
