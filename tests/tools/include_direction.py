"""Which file may include what: abi <- sdk <- plugins, abi <- framework <- models <- apps."""
import os
import re

SOURCES = (".h", ".hpp", ".inc", ".cpp", ".cc", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# Headers of the framework that need only what the C++ library has; the other public ones may add fmt.
NO_LIBRARY = ("facet/abi/", "facet/sdk/")
THIRD_PARTY = re.compile(
    r"^(cuda|cublas|cusolver|curand|cudnn|nvrtc|nvtx|cooperative_groups|boost/|toml\+\+|toml|spdlog/|tbb/|oneapi/|"
    r"nlohmann/|simdjson|CLI/|CLI11|gtest/|gmock/|benchmark/|fmt/)")


def source_files(root, folder):
    for path, folders, names in os.walk(os.path.join(root, folder)):
        folders.sort()
        for name in sorted(names):
            if name.endswith(SOURCES):
                yield os.path.relpath(os.path.join(path, name), root)


def includes_of(root, file):
    """Pairs of (what is written between the quotes, the file in the tree it names or None)."""
    with open(os.path.join(root, file), encoding="utf-8") as source:
        text = source.read()
    for quote, name in INCLUDE.findall(text):
        target = None
        if quote == '"' and os.path.isfile(os.path.join(root, os.path.dirname(file), name)):
            target = os.path.normpath(os.path.join(os.path.dirname(file), name))
        else:
            for base in bases(file):
                if os.path.isfile(os.path.join(root, base, name)):
                    target = os.path.normpath(os.path.join(base, name))
                    break
        yield name, target


def bases(file):
    """Include paths that the build gives a file."""
    parts = file.split(os.sep)
    own = []
    if parts[0] == "framework":
        own = [os.path.join("framework", "src")]
    else:
        # Every folder above the file, up to the part it belongs to, and its include folder.
        for depth in range(len(parts) - 1, 1, -1):
            own += [os.path.join(*parts[:depth]), os.path.join(*parts[:depth], "include")]
    return own + [os.path.join("framework", "include"), os.path.join("models", "gemma4", "include"), ""]


def top(path):
    return path.split(os.sep)[0] if path else ""


def complaint(file, name, target):
    """Why this include is forbidden, or None."""
    area = top(file)
    if area == "framework":
        return framework_complaint(file, name, target)
    if area == "plugins":
        return plugin_complaint(file, name, target)
    if area == "models":
        if top(target) in ("plugins", "apps"):
            return "a model is built from interfaces; it includes no plugin and no program"
        if re.match(r"^(plugins|apps)/", name):
            return "a model is built from interfaces; it includes no plugin and no program"
    if area == "apps" and (top(target) == "plugins" or name.startswith("plugins/")):
        return "the program loads plugins by name; it includes none"
    return None


def framework_complaint(file, name, target):
    if top(target) in ("plugins", "models", "apps") or re.match(r"^(plugins|models|apps)/", name):
        return "the framework knows no plugin, no model and no program"
    include = os.path.join("framework", "include") + os.sep
    if file.startswith(include):
        own = file[len(include):]
        third_party = THIRD_PARTY.match(name)
        if own.startswith("facet/sdk/cuda/") and name.startswith("cuda_"):  # for code that needs the toolkit anyway
            return None
        if third_party and (not name.startswith("fmt/") or own.startswith(NO_LIBRARY)):
            return "public headers include the C++ library and, outside abi and sdk, fmt; nothing else"
        if target and not target.startswith(include):
            return "a public header includes only public headers"
        if own.startswith("facet/abi/") and name.startswith("facet/") and not name.startswith("facet/abi/"):
            return "abi stands alone"
        if own.startswith("facet/sdk/") and name.startswith("facet/") and not name.startswith(NO_LIBRARY):
            return "sdk stands on abi alone"
    return None


def plugin_complaint(file, name, target):
    own = os.path.join(*file.split(os.sep)[:2]) + os.sep
    if target and target.startswith(own):
        return None
    if name.startswith("facet/") and not name.startswith(NO_LIBRARY):
        return "a plugin sees facet/abi and facet/sdk only"
    if target and not target.startswith(os.path.join("framework", "include") + os.sep):
        return "a plugin includes nothing of another folder than its own"
    return None


def violations(root):
    """Lines "file: include <name>: why" for every forbidden include under root, and how many files were read."""
    found, count = [], 0
    for folder in ("framework", "plugins", "models", "apps"):
        for file in source_files(root, folder):
            count += 1
            for name, target in includes_of(root, file):
                why = complaint(file, name, target)
                if why:
                    found.append(f"{file}: include of {name}: {why}")
    return found, count
