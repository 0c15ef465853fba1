#!/usr/bin/env python3
"""Writes the option tables of README.md from the schemas the plugins publish; --check fails when they are out of date.

usage: option_tables.py FACET [--check]      FACET: path of the built program
"""
import json
import os
import subprocess
import sys

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")
BEGIN = "<!-- option tables: written by scripts/option_tables.py -->\n"
END = "<!-- end of option tables -->\n"
TITLES = {"linear": "Linear kernels", "attention": "Attention", "kv_cache": "KV cache policies", "scheduler": "Schedulers"}


def facet(program, *arguments):
    result = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    return result.stdout


def section(program, plugin):
    text = facet(program, "plugins", "describe", plugin["name"], "--kind", plugin["kind"])
    lines = text.splitlines()
    summary = lines[0].split(": ", 1)[1]
    table = [line for line in lines if line.startswith("|")]
    flags = " ".join(plugin["flags"]) or "none"
    body = "\n".join(table) if table else "No options."
    device = "Runs on CUDA.\n\n" if plugin["devices"] == ["cuda"] else ""
    return f"#### `{plugin['name']}`\n\n{device}{summary[0].upper()}{summary[1:]}. Flags: {flags}.\n\n{body}\n"


def without_cuda(text):
    """A build without CUDA has fewer plugins; their sections (marked by the line of their device) are left out of the comparison."""
    head, *sections = text.split("#### ")
    kept = [head]
    for section in sections:
        if "\nRuns on CUDA.\n" not in section:
            kept.append("#### " + section)
        elif "### " in section:  # the heading of the next kind stands at its end
            kept.append(section[section.index("### "):])
    return "".join(kept)


def document(program, listed):
    built_in = os.path.realpath(os.path.join(os.path.dirname(program), "..", "lib", "facet", "plugins"))
    parts = []
    for kind, title in TITLES.items():
        parts.append(f"### {title}\n")
        own = [p for p in listed if p.get("kind") == kind and os.path.dirname(os.path.realpath(p["file"])) == built_in]
        parts += [section(program, plugin) for plugin in sorted(own, key=lambda p: p["name"])]
    return "\n".join(parts)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--check"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        asked = any(a in ("-h", "--help") for a in arguments)
        print(__doc__.strip(), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    program = os.path.abspath(arguments[0])
    before, rest = open(TARGET).read().split(BEGIN)
    old, after = rest.split(END)
    listed = json.loads(facet(program, "plugins", "list", "--json"))["plugins"]
    new = "\n" + document(program, listed) + "\n"
    if "--check" in sys.argv:
        if not any(p.get("devices") == ["cuda"] for p in listed):
            old, new = without_cuda(old), without_cuda(new)
        if old != new:
            sys.exit("the option tables of README.md do not match the plugins: run scripts/option_tables.py " + arguments[0])
        print("the option tables of README.md match the plugins")
        return
    with open(TARGET, "w") as out:
        out.write(before + BEGIN + new + END + after)


if __name__ == "__main__":
    sys.exit(main())
