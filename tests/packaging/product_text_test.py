"""Usage: product_text_test.py REPOSITORY. Shows first that each rule can fail, then holds the tree to them."""
import os
import sys
import tempfile

import product_text

# file name, text, how many complaints it must draw
CASES = (
    ("word.cpp", "int a;  // TO" "DO: b\n", 1),
    ("small_word.md", "This is a st" "ub for now.\n", 1),
    ("not_done.py", "raise ValueError('not " "implemented')\n", 1),
    ("path.sh", "cd /wo" "rk/main\n", 1),
    ("temporary.toml", "path = \"/t" "mp/model\"\n", 1),
    ("home.cmake", "set(A /ho" "me/someone/a)\n", 1),
    ("long.cpp", "int a;\n" * (product_text.MAX_SOURCE_LINES + 1), 1),
    ("both.h", "// FIX" "ME see /ro" "ot/notes\n", 2),
    ("long.md", "line\n" * (product_text.MAX_SOURCE_LINES + 1), 0),
    ("clean.cpp", "// a hack-saw is ${TMP}/work/x, see https://host/tmp/page; stubborn; todo_list\n", 0),
    ("full.cpp", "int a;\n" * product_text.MAX_SOURCE_LINES, 0),
    ("picture.bin", "TO" "DO /t" "mp/x\n", 0),
)


def check_rules():
    wrong = []
    with tempfile.TemporaryDirectory() as root:
        for name, text, wanted in CASES:
            with open(os.path.join(root, name), "w", encoding="utf-8") as file:
                file.write(text)
        found, count = product_text.complaints(root)
        for name, _, wanted in CASES:
            drawn = [line for line in found if line.startswith(name + ":")]
            if len(drawn) != wanted:
                wrong.append(f"{name}: {wanted} complaints wanted, drawn {drawn}")
        if count != sum(1 for case in CASES if not case[0].endswith(".bin")):
            wrong.append(f"{count} files were read")
    return wrong


def main():
    wrong = check_rules()
    if wrong:
        sys.exit("the rules do not work:\n  " + "\n  ".join(wrong))
    found, count = product_text.complaints(sys.argv[1])
    if count < 50:
        sys.exit(f"only {count} text files found below {sys.argv[1]}; is it the repository?")
    if found:
        sys.exit("\n".join(found))
    print(f"{count} text files are clean")


if __name__ == "__main__":
    main()
