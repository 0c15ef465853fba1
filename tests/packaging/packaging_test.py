"""Does what a user does with an installed Facet: installs the build, moves the prefix to a path with a space in it, builds
examples/scheduler_shortest_first alone against it, names the result in a TOML file and runs the moved program."""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import product_text

GPU_LIBRARIES = re.compile(r"lib(cuda|cudart|cublas|cublasLt|cusolver|cusparse|curand|cudnn|nvrtc|nvidia-ml|nccl)\b")
REQUESTS = (("The quick brown fox", 6), ("Install the package with", 3), ("A", 4))

CONFIG = """\
[model]
path = "{model}"

[engine]
max_sequences = 2
max_context = 256
max_step_tokens = 64

[linear]
plugin = "{linear}"

[attention]
plugin = "flash"

[kv_cache.sliding]
plugin = "ring"

[kv_cache.global]
plugin = "paged"

[scheduler]
plugin = "{scheduler}"
"""


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def command(arguments, folder, wanted=0):
    """Runs a program without the variables that would let it find plugins of the build tree; returns (stdout, stderr)."""
    environment = {k: v for k, v in os.environ.items() if k not in ("FACET_PLUGIN_PATH", "LD_LIBRARY_PATH")}
    done = subprocess.run([str(a) for a in arguments], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != wanted:
        raise AssertionError(f"exit code {done.returncode}, wanted {wanted}: {' '.join(map(str, arguments))}\n"
                             f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout, done.stderr


class Package:
    """The moved installation and a work folder apart from it."""

    def __init__(self, options, scratch):
        self.options = options
        self.scratch = scratch
        self.prefix = os.path.join(scratch, "moved here", "facet")
        self.program = os.path.join(self.prefix, "bin", "facet")
        self.plugins = os.path.join(self.prefix, "lib", "facet", "plugins")
        self.work = os.path.join(scratch, "work of a user")

    def install_and_move(self):
        staged = os.path.join(self.scratch, "staged")
        command([self.options.cmake, "--install", self.options.build, "--prefix", staged], self.scratch)
        os.makedirs(os.path.dirname(self.prefix))
        os.rename(staged, self.prefix)
        os.makedirs(self.work)
        for part in ("include/facet/abi/plugin.h", "include/facet/abi/layout_table.inc", "include/facet/sdk/export.h",
                     "lib/cmake/facet/facet-config.cmake", "lib/cmake/facet/facet-config-version.cmake",
                     "share/facet/configs/default.toml"):
            expect(os.path.isfile(os.path.join(self.prefix, part)), f"{part} was not installed")
        foreign = [p for p in os.listdir(os.path.join(self.prefix, "include", "facet")) if p not in ("abi", "sdk")]
        expect(not foreign, f"headers of the core were installed: {foreign}")

    def check_files(self):
        """Nothing installed knows where it was built or staged, and nothing links a GPU library."""
        for file in glob.glob(os.path.join(self.prefix, "lib", "cmake", "facet", "*.cmake")):
            with open(file, encoding="utf-8") as source:
                text = source.read()
            for place in (self.options.source, self.options.build, os.path.join(self.scratch, "staged")):
                expect(place not in text, f"{file} names {place}")
        libraries = glob.glob(os.path.join(self.plugins, "*.so"))
        expect(len(libraries) >= 10, f"only {len(libraries)} plugins were installed")
        for file, wanted in [(self.program, "$ORIGIN/../lib")] + [(library, "$ORIGIN") for library in libraries]:
            dynamic, _ = command(["readelf", "-d", file], self.work)
            paths = re.findall(r"\((?:RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]", dynamic)
            expect(paths == [wanted], f"{file}: run path {paths}, wanted {wanted}")
        linked, _ = command(["ldd", self.program], self.work)
        expect("not found" not in linked, f"the moved program lacks a library:\n{linked}")
        expect(not GPU_LIBRARIES.search(linked), f"the moved program links a GPU library:\n{linked}")

    def build_example(self):
        """Returns the plugin's path relative to the work folder."""
        sources = os.path.join(self.work, "shortest first")
        shutil.copytree(os.path.join(self.options.source, "examples", "scheduler_shortest_first"), sources)
        command([self.options.cmake, "-S", sources, "-B", os.path.join(sources, "build"),
                 f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_COMPILER={self.options.compiler}",
                 f"-DCMAKE_BUILD_TYPE={self.options.build_type}"], self.work)
        command([self.options.cmake, "--build", os.path.join(sources, "build")], self.work)
        return os.path.join("shortest first", "build", "scheduler_shortest_first.so")

    def write_config(self, name, scheduler):
        checkpoints = os.path.join(self.options.source, "models", "gemma4", "checkpoints")
        path = os.path.join(self.work, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(model=os.path.join(checkpoints, "docs-5m"), linear="dense", scheduler=scheduler))
        return path

    def run(self, config, wanted=0):
        """Runs the moved program from the root folder, so that nothing is found by the working directory."""
        requests = os.path.join(self.work, "requests.jsonl")
        with open(requests, "w", encoding="utf-8") as file:
            for prompt, tokens in REQUESTS:
                file.write(json.dumps({"prompt": prompt, "max_tokens": tokens}) + "\n")
        return command([self.program, "run", config, "--requests", requests, "--greedy", "--ignore-eos", "--json"], "/",
                       wanted)

    def run_dropped_in(self):
        library = self.build_example()
        config = self.write_config("dropped in.toml", "./" + library)
        document = json.loads(self.run(config)[0])
        results = document["results"]
        expect([len(r["ids"]) for r in results] == [tokens for _, tokens in REQUESTS],
               f"wrong numbers of tokens: {[len(r['ids']) for r in results]}")
        plugins = document["record"]["plugins"]
        schedulers = [p for p in plugins if p["kind"] == "scheduler"]
        expect(len(schedulers) == 1 and schedulers[0]["name"] == "shortest_first", f"schedulers: {schedulers}")
        expect(os.path.samefile(schedulers[0]["file"], os.path.join(self.work, library)), f"file: {schedulers[0]}")
        expect(schedulers[0]["calls"] > 0, f"the scheduler was never called: {schedulers[0]}")
        for plugin in plugins:
            if plugin["kind"] != "scheduler":
                expect(os.path.dirname(os.path.realpath(plugin["file"])) == os.path.realpath(self.plugins),
                       f"a plugin from elsewhere: {plugin}")
        # Another scheduler decides the order only: the tokens of every request stay the same.
        usual = json.loads(self.run(self.write_config("usual.toml", "continuous"))[0])
        expect([r["ids"] for r in usual["results"]] == [r["ids"] for r in results], "the scheduler changed the tokens")
        return library

    def check_commands(self, library):
        usage, _ = command([self.program, "--help"], "/")
        if re.search(r"^\s+plugins\b", usage, re.M):
            command([self.program, "plugins", "check", os.path.join(self.work, library)], "/")
            listed, _ = command([self.program, "plugins", "list"], "/")
            expect("continuous" in listed, f"plugins list:\n{listed}")

    def check_installed_configs(self):
        """All tracked configurations and nothing else, and each finds its model and its plugins where it was moved to."""
        share = os.path.join(self.prefix, "share", "facet")
        tracked = {f for f in product_text.tracked_files(self.options.source) if f.startswith("configs/")}
        installed = {os.path.relpath(os.path.join(path, name), share)
                     for path, _, names in os.walk(os.path.join(share, "configs")) for name in names}
        expect(installed == tracked, f"configs/: only installed {installed - tracked}, only tracked {tracked - installed}")
        for file in sorted(f for f in installed if f.endswith(".toml")):
            with open(os.path.join(share, file), encoding="utf-8") as config:
                if 'device = "cuda"' in config.read():
                    continue  # needs a GPU even to be explained
            command([self.program, "explain", os.path.join(share, file)], "/")
        requests = os.path.join(share, "configs", "requests.jsonl")
        for name in ("default.toml", "docs-5m.toml"):
            command([self.program, "run", os.path.join(share, "configs", name), "--requests", requests, "--json"], "/")

    def check_links(self):
        """Every document that is installed leads to places that are installed too."""
        share = os.path.join(self.prefix, "share", "facet")
        documents = glob.glob(os.path.join(share, "**", "*.md"), recursive=True)
        expect(os.path.join(share, "docs", "json.md") in documents, f"installed documents: {documents}")
        for document in documents:
            with open(document, encoding="utf-8") as file:
                targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", file.read())
            for target in targets:
                place = os.path.join(os.path.dirname(document), target)
                expect("://" in target or os.path.exists(place), f"{document}: the link to {target} is dead")

    def check_build_is_no_package(self):
        """find_package must not take the build tree for an installation: it has no targets file."""
        sources = os.path.join(self.work, "shortest first")
        _, message = command([self.options.cmake, "-S", sources, "-B", os.path.join(self.work, "not built"),
                              f"-DCMAKE_PREFIX_PATH={self.options.build}",
                              f"-DCMAKE_CXX_COMPILER={self.options.compiler}"], self.work, 1)
        expect("Could not find a package configuration file" in message, f"message:\n{message}")

    def lose_a_plugin(self):
        """Without its file a plugin is refused with the places that were looked at: the build tree is not one of them."""
        lost = [f for f in glob.glob(os.path.join(self.plugins, "*.so")) if "scheduler_continuous" in f]
        expect(len(lost) == 1, f"scheduler_continuous: {lost}")
        os.remove(lost[0])
        _, message = self.run(os.path.join(self.work, "usual.toml"), wanted=3)
        expect("continuous" in message and "lib/facet/plugins" in message, f"message:\n{message}")
        expect(self.options.build not in message, f"the build tree is searched:\n{message}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("source", "build", "cmake", "compiler", "build-type"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="facet_packaging_") as scratch:
        package = Package(options, os.path.realpath(scratch))
        package.install_and_move()
        package.check_files()
        library = package.run_dropped_in()
        package.check_commands(library)
        package.check_installed_configs()
        package.check_links()
        package.check_build_is_no_package()
        package.lose_a_plugin()
    print("installed, moved, extended and run")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"packaging_test: {error}")
