#!/usr/bin/env python3
"""Writes framework/include/facet/abi/layout_table.inc from the contract's headers; --check fails when it is out of date."""
import os
import re
import sys

ABI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "framework", "include", "facet", "abi")
HEADERS = ["types", "weight", "options", "host", "plugin", "linear", "kv_layout", "attention", "kv_cache", "scheduler"]
HEAD = "// Every field and method of the contract, in order. Written by scripts/abi_layout.py.\n// clang-format off\n"


def field_name(declaration):
    function = re.search(r"\(\*(\w+)\)\s*\(", declaration)
    return function.group(1) if function else re.search(r"(\w+)(\[\w+\])?$", declaration).group(1)


def rows_of(header):
    text = re.sub(r"//[^\n]*", "", open(os.path.join(ABI, header + ".h")).read())
    rows = []
    for kind, name, body in re.findall(r"^(struct|class) (\w+) \{(.*?)^\};", text, re.S | re.M):
        if kind == "struct":
            rows.append(f"FACET_ABI_SIZE({name}),")
            fields = [part.strip() for part in re.sub(r"\s+", " ", body).split(";")]
            rows += [f"FACET_ABI_FIELD({name}, {field_name(field)})," for field in fields if field]
        else:
            methods = re.findall(r"virtual [^;]*?(\w+)\(", body)
            rows += [f"FACET_ABI_METHOD({name}, {method}, {slot})," for slot, method in enumerate(methods)]
    return rows


def main():
    table = HEAD + "\n".join(row for header in HEADERS for row in rows_of(header)) + "\n"
    path = os.path.join(ABI, "layout_table.inc")
    if "--check" in sys.argv[1:]:
        if open(path).read() != table:
            sys.exit("layout_table.inc does not match the headers: run scripts/abi_layout.py and raise kContractVersion or the interface version")
        print("layout_table.inc matches the headers")
        return
    with open(path, "w") as out:
        out.write(table)


if __name__ == "__main__":
    main()
