"""Count unidiomatic phrases and vague names; fail where a file has more of them than `.ci/english.txt` allows.

A file without a line there may have three phrases per 1000 words and two vague names per 1000. `--update` lowers the
allowances to what the files have now, and raises none. A reworded file may keep its number of hits while it shrinks.

    python .ci/english.py                     check all files: `make check` does
    python .ci/english.py trieye docs --worst 5   show the rates, and the worst files with their lines
    python .ci/english.py --update            after a rewrite
"""

import argparse
import ast
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
ALLOWANCES = ROOT / ".ci/english.txt"
TARGETS = (3, 2)  # per 1000 words; per 1000 names

# Each is a symptom of a sentence without a concrete noun or verb. Reword the sentence rather than dodge the pattern.
PHRASES = [
    (
        r"(?:what|whatever|whoever) (?:is|was|are|were|has|have|had|it|its|the|they|he|she|one|a|an|comes?|came|goes|"
        r"went|stands?|stood|lies|can|could|may|would|users?|each|all|else|follows?|belongs|becomes?|became|remains?|"
        r"needs?|changes?|others?|there|this|that|of|in|to|makes?|says?|writes?|reads?|does|did|runs?|ran|happens|"
        r"begins?|ends?)"
    ),
    r"(?:that|those) of|those (?:that|which|who)",
    r"(?:of|in|from|with|by|over|at|on|to) which",
    (
        r"(?:is|are|was|were|be) (?:said|told|asked|known|seen|looked at|found again|begun|taken for|given up|"
        r"left alone|handed (?:on|out|over)|thought of|meant)"
    ),
    r"(?:says?|tells?|knows?) (?:so|which|what|how|where|whether|it|that|who|of)",
    r"(?:go|goes|going|went|gone) on",
    r"anew|once more|made again",
    r"of (?:its|their|one's|our|his|her|your) own",
    r"as one|one(?:'s| that| who| which| of them)|the one (?:before|of)",
    r"nobody|somebody|no one",
    r"(?:gets?|got) on|sees? to|seen to|stands? (?:in|there|beside|for|at)|lies? (?:there|in|at|beside)|suffices?",
    r"as (?:there|here|before|it was|they were|it is|they are)",
    r"(?:so|as) long as|as far as|in place of|beside|meanwhile|moreover|thereby|thereof|whereof",
    r"as (?:one|they|it) (?:likes?|wants?|pleases?)|(?:is|are) to be|in so many|taken care of|comes? to nothing",
]
PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b", re.IGNORECASE)
VAGUE = {
    "found",
    "held",
    "place",
    "places",
    "known",
    "asked",
    "given",
    "there",
    "taken",
    "said",
    "told",
    "what",
    "kept",
}
TOKEN = re.compile(  # a comment, or a string that may contain a #
    r"""#[^\n]*|(?s:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3})|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
MESSAGE_WORDS, COMMENT_WORDS = 4, 3  # shorter texts are keys and labels
SUFFIXES = (".py", ".md", ".yaml", ".jinja")
GENERATED = ROOT / "docs/modules.md"  # lines of docstrings, which count in their modules


@dataclass
class Score:
    """Hits of one kind in one file, each as (line, text), and the number of words or names searched."""

    size: int = 0
    hits: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        """Count the words and the phrases of a text that begins in a line."""
        self.size += len(WORD.findall(text))
        self.hits += [(line + text.count("\n", 0, m.start()), m.group()) for m in PHRASE.finditer(text)]


def strings(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield docstrings and messages: strings of four words or more, an f-string as a whole."""
    inside = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        else:
            continue
        if id(node) in docstrings or (len(WORD.findall(text)) >= MESSAGE_WORDS and " " in text.strip()):
            yield node.lineno, text


def names(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield each variable, parameter and attribute that is bound, with its line."""
    for node in nodes:
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def scores(path: Path) -> tuple[Score, Score]:
    """Return the scores of the phrases and of the names of a file."""
    source = path.read_text(encoding="utf-8")
    text, vague = Score(), Score()
    if path.suffix == ".py" and "{{" not in path.name:
        try:
            nodes = list(ast.walk(ast.parse(source)))  # walking takes half of the time
        except SyntaxError:  # a file of the template
            return text, vague
        for line, string in strings(nodes):
            text.add(line, string)
        for token in TOKEN.finditer(source):
            if token[0].startswith("#") and len(WORD.findall(token[0])) >= COMMENT_WORDS:
                text.add(source.count("\n", 0, token.start()) + 1, token[0])
        bound = list(names(nodes))
        vague.size = len(bound)
        vague.hits = [(line, name) for line, name in bound if name.strip("_") in VAGUE]
    elif path.suffix == ".yaml":
        for number, line in enumerate(source.splitlines(), 1):
            text.add(number, line.partition("#")[2])
    else:
        fenced = False
        for number, line in enumerate(source.splitlines(), 1):
            fenced ^= line.lstrip().startswith("```")
            if not fenced and not line.startswith("    "):
                text.add(number, re.sub(r"`[^`]*`", "X", line))
    return text, vague


def listed(paths: list[str]) -> list[Path]:
    """Return the files of the project that are tracked or new, below these paths."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    files = [ROOT / line for line in lines if line.endswith(SUFFIXES)]
    return sorted(path for path in set(files) if path.is_file() and path not in {Path(__file__).resolve(), GENERATED})


Allowance = tuple[float, float, int, int]
"""Rates per 1000, then numbers of hits; of phrases, then of names."""


def lower(one: Allowance, other: Allowance) -> Allowance:
    """Return the smaller of each number."""
    return min(one[0], other[0]), min(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])


def allowances() -> dict[str, Allowance]:
    """Return the allowance of each file that has one."""
    allowed = {}
    for line in ALLOWANCES.read_text(encoding="utf-8").splitlines() if ALLOWANCES.exists() else ():
        *numbers, path = line.split(maxsplit=4)
        entry = (float(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3]))
        allowed[path] = lower(entry, allowed.get(path, entry))  # a merge may leave two lines of one file
    return allowed


def rate(score: Score) -> float:
    """Return hits per 1000 words or names."""
    return round(1000 * len(score.hits) / max(score.size, 1), 1)


def problems(path: str, pair: tuple[Score, Score], allowed: Allowance | None) -> Iterator[str]:
    """Yield a message for each kind of hit of which a file has more than it may."""
    for index, (score, kind, target) in enumerate(
        zip(pair, ("unidiomatic phrases", "vague names"), TARGETS, strict=True)
    ):
        most = math.ceil(target * score.size / 1000)
        limit = max(allowed[2 + index], most) if allowed else most
        if len(score.hits) > limit and rate(score) > (allowed[index] if allowed else 0):
            lines = "".join(f"\n    {line}: {text!r}" for line, text in sorted(score.hits)[:20])
            yield f"{path}: {len(score.hits)} {kind}, {limit} allowed (CONTRIBUTING.md, English){lines}"


def update(files: dict[str, tuple[Score, Score]], allowed: dict[str, Allowance]) -> None:
    """Lower the allowances to the present scores; a file that meets the targets loses its line."""
    first = not allowed
    lines = []
    for path, pair in files.items():
        score = (rate(pair[0]), rate(pair[1]), len(pair[0].hits), len(pair[1].hits))
        is_above = any(value > target for value, target in zip(score, TARGETS, strict=False))
        if is_above and (first or path in allowed):
            numbers = lower(score, allowed.get(path, score))
            lines.append(f"{' '.join(map(str, numbers))} {path}\n")
    ALLOWANCES.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Check, show or update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files or directories; all by default")
    parser.add_argument("--worst", type=int, metavar="N", help="show the N files with the most hits, and check nothing")
    parser.add_argument("--update", action="store_true", help="lower the allowances to what the files have now")
    arguments = parser.parse_args()
    files = {str(path.relative_to(ROOT)): scores(path) for path in listed(arguments.paths)}
    if arguments.update:
        update(files, allowances())
        return
    rates = [
        1000 * sum(len(p[i].hits) for p in files.values()) / max(sum(p[i].size for p in files.values()), 1)
        for i in (0, 1)
    ]
    print(f"english: {rates[0]:.1f} phrases per 1000 words, {rates[1]:.1f} vague names per 1000, {len(files)} files")
    if arguments.worst is not None:
        for path, pair in sorted(files.items(), key=lambda item: -sum(len(s.hits) for s in item[1]))[: arguments.worst]:
            print(path, *(f"\n    {line}: {text!r}" for score in pair for line, text in sorted(score.hits)))
        return
    allowed = allowances()
    messages = [message for path, pair in files.items() for message in problems(path, pair, allowed.get(path))]
    sys.exit("\n".join(messages) or None)


if __name__ == "__main__":
    main()
