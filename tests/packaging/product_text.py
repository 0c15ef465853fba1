"""What no tracked text file may hold: paths of one machine, words for unfinished work, C++ files that grew too long."""
import os
import re
import subprocess

TEXT_ENDINGS = (".h", ".hpp", ".inc", ".cpp", ".cc", ".cu", ".cuh", ".py", ".sh", ".cmake", ".in", ".md", ".toml",
                ".txt", ".yml", ".yaml", ".html")
TEXT_NAMES = ("CMakePresets.json", ".clang-format", ".clang-tidy", ".gitignore", "run")
SOURCE_ENDINGS = (".h", ".hpp", ".inc", ".cpp", ".cc", ".cu", ".cuh")
# Data made elsewhere: text of a tokenizer or of a prompt may hold any word.
DATA = re.compile(r"^(tests/data/|models/[^/]+/checkpoints/.*\.json$)")
MAX_SOURCE_LINES = 450

# Pieces are joined here, so that this file does not hold what it looks for.
UNFINISHED = ("TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK", "W" "IP", "st" "ub", "st" "ubs", "st" "ubbed",
              "not " "implemented", "not yet " "implemented", "un" "implemented", "coming " "soon", "lorem " "ipsum")
# Each with the spelling rule: capitals only where the small form is an ordinary word.
WORDS = re.compile(r"\b(?:" + "|".join(w if w.isupper() else "(?i:" + w + ")" for w in UNFINISHED) + r")\b")
# A path that begins at the root of one machine; "a/work/b" and "https://host/tmp/" are something else.
MACHINE_PATH = re.compile(r"(?<![\w.~$}>*-])/(?:work|tmp|root|home|Users|mnt|scratch)(?:/[\w.-]|\b(?!/))")


def tracked_files(root):
    """Paths below root: what git tracks, or without a repository every file outside of build folders."""
    listed = subprocess.run(["git", "-c", f"safe.directory={root}", "-C", root, "ls-files", "-z"], capture_output=True)
    if listed.returncode == 0 and listed.stdout:
        return [name for name in listed.stdout.decode().split("\0") if name]
    found = []
    for path, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f != ".git" and not f.startswith("build"))
        found += [os.path.relpath(os.path.join(path, name), root) for name in sorted(names)]
    return found


def is_text(file):
    name = os.path.basename(file)
    return not DATA.match(file) and (name.endswith(TEXT_ENDINGS) or name in TEXT_NAMES)


def complaints_of(file, text):
    """Lines "file:line: why" for one file."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        for match in WORDS.finditer(line):
            found.append(f"{file}:{number}: '{match.group()}' speaks of unfinished work")
        for match in MACHINE_PATH.finditer(line):
            found.append(f"{file}:{number}: '{line[match.start():match.start() + 40]}' is a path of one machine")
    if file.endswith(SOURCE_ENDINGS) and len(lines) > MAX_SOURCE_LINES:
        found.append(f"{file}: {len(lines)} lines, at most {MAX_SOURCE_LINES} keep one idea a file")
    return found


def complaints(root):
    """All complaints about the tree and how many files were read."""
    found, count = [], 0
    for file in tracked_files(root):
        path = os.path.join(root, file)
        # A file that is tracked and deleted is about to leave.
        if not is_text(file) or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read()
        count += 1
        found += complaints_of(file, text)
    return found, count
