"""Kills `facet quantize` at random moments, goes on with --resume, and compares every byte with an uninterrupted run.

usage: resume_test.py FACET CHECKPOINT CALIBRATION.jsonl [KILLS]
"""
import filecmp
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FILES = ("model.safetensors", "config.json", "tokenizer.json")
# A run that ends before its kill counts for nothing; that many tries for each kill are enough under any load.
TRIES = 8


class Job:
    def __init__(self, facet, checkpoint, calibration, folder):
        self.facet, self.checkpoint, self.calibration, self.folder = facet, checkpoint, calibration, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def command(self, out, *more):
        return [self.facet, "quantize", "--in", self.checkpoint, "--out", self.path(out), "--method", "gptq", "--group", "64",
                "--calibration", self.calibration, "--samples", "12", "--length", "96", "--head", "int4",
                "--refinements", "1", *more]

    def resume(self, out):
        """A run that was killed before it made its work folder left nothing to resume."""
        return ["--resume"] if any(os.path.exists(self.path(out) + end) for end in (".work", ".partial")) else []

    def run(self, out, *more):
        start = time.monotonic()
        done = subprocess.run(self.command(out, *more), capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode} of {self.command(out, *more)}\n{done.stdout}{done.stderr}")
        return time.monotonic() - start

    def run_and_kill(self, out, after, *more):
        """True when the kill came before the end."""
        process = subprocess.Popen(self.command(out, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=after)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return process.returncode == -signal.SIGKILL
        return False


def finished_layers(job, out):
    try:
        names = os.listdir(job.path(out) + ".work")
    except FileNotFoundError:  # not there yet, or gone with the end of the run
        return 0
    return len([n for n in names if n.startswith("layer-") and n.endswith(".safetensors")])


def compare(job, out):
    for name in FILES:
        if not filecmp.cmp(os.path.join(job.path("whole"), name), os.path.join(job.path(out), name), shallow=False):
            raise AssertionError(f"{name} differs from the uninterrupted run's")
    with open(os.path.join(job.path(out), "quantization_report.json"), encoding="utf-8") as report:
        layers = json.load(report)["layers"]
    if any(layer is None for layer in layers):
        raise AssertionError("the report lacks a layer")
    left = [n for n in os.listdir(job.folder) if n.startswith(out + ".")]
    if left:
        raise AssertionError(f"left behind: {left}")


def zero_the_middle(content):
    middle = len(content) // 2
    return content[:middle] + bytes(64) + content[middle + 64:]


def change_a_digit_of_the_report(content):
    at = content.index(b'"report":"') + len(b'"report":"')
    while not chr(content[at]).isdigit():
        at += 1
    return content[:at] + (b"2" if content[at:at + 1] == b"1" else b"1") + content[at + 1:]


def break_the_report(content):
    at = content.index(b'"report":"') + len(b'"report":"')
    return content[:at] + b"X" + content[at + 1:]


# Each keeps a valid file in the format's sense.
DAMAGES = (zero_the_middle, change_a_digit_of_the_report, break_the_report, lambda content: content + bytes(7))


def kill_after_a_layer(job, out):
    """True when the kill came after the first finished layer and before the end."""
    process = subprocess.Popen(job.command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and finished_layers(job, out) == 0:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return process.returncode == -signal.SIGKILL and finished_layers(job, out) > 0


def try_finished(job, out):
    """A finished layer is not said to be quantized again."""
    kept = "kept"
    shutil.copytree(job.path(out) + ".work", job.path(kept) + ".work")
    done = subprocess.run(job.command(kept, "--resume"), capture_output=True, text=True)
    told = "taking over the finished layer 1 of" in done.stderr and "quantizing layer 1 of" not in done.stderr
    if done.returncode != 0 or not told:
        raise AssertionError(f"the resumed run: {done.returncode}\n{done.stderr}")
    compare(job, kept)


def try_damaged(job):
    """A finished layer whose bytes changed is refused, and made anew once it is deleted."""
    out = "damaged"
    for _ in range(TRIES):
        if kill_after_a_layer(job, out):
            break
        for left in (job.path(out), job.path(out) + ".work", job.path(out) + ".partial"):
            shutil.rmtree(left, ignore_errors=True)
    else:
        raise AssertionError("no run was killed between its first layer and its end")
    try_finished(job, out)
    path = os.path.join(job.path(out) + ".work", "layer-00000.safetensors")
    with open(path, "rb") as file:
        content = file.read()
    for damage in DAMAGES:
        with open(path, "wb") as file:
            file.write(damage(content))
        done = subprocess.run(job.command(out, "--resume"), capture_output=True, text=True)
        if done.returncode != 3 or path not in done.stderr or "delete this file" not in done.stderr:
            raise AssertionError(f"{damage}: a damaged layer passed: {done.returncode}\n{done.stderr}")
    os.remove(path)
    job.run(out, "--resume")
    compare(job, out)
    print("damaged layer: refused, then made anew; equal")


def main():
    facet, checkpoint, calibration = sys.argv[1:4]
    kills = int(sys.argv[4]) if len(sys.argv) > 4 else 10
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(facet, checkpoint, calibration, folder)
        seconds = job.run("whole")
        killed = tries = 0
        while killed < kills:
            tries += 1
            if tries > kills * TRIES:
                raise AssertionError(f"only {killed} of {tries} runs lived long enough to be killed")
            out = f"run{tries}"
            if not job.run_and_kill(out, moments.uniform(0, seconds)):
                shutil.rmtree(job.path(out))
                continue
            if os.path.exists(job.path(out)) and not os.path.exists(job.path(out) + ".work"):
                # Killed while it exited, with all done. An output that is there is a whole one.
                compare(job, out)
                shutil.rmtree(job.path(out))
                continue
            killed += 1
            layers = finished_layers(job, out)
            # Every other time the resumed run is killed, too.
            again = killed % 2 == 0 and job.run_and_kill(out, moments.uniform(0, seconds / 2), *job.resume(out))
            if not os.path.exists(os.path.join(job.path(out), "quantization_report.json")) or os.path.exists(job.path(out) + ".work"):
                job.run(out, *job.resume(out))
            compare(job, out)
            print(f"kill {killed}: {layers} layers finished{', killed again' if again else ''}; equal")
            shutil.rmtree(job.path(out))
        try_damaged(job)


if __name__ == "__main__":
    main()
