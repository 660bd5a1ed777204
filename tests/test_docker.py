"""The images, as far as a machine without a container engine can try them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Instruction and arguments of a Dockerfile, continued lines joined, comments left out."""
    lines = [line for line in (ROOT / dockerfile).read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line]


def run_steps(dockerfile: str, folder: Path, **variables: str) -> list[str]:
    """Run the steps of a Dockerfile that use pip in a folder that holds requirements.txt, without any network.

    The stand-in for `python -m pip` lists what NVIDIA's image might hold, and records what it is to install: its
    arguments and, behind each of them that is a file, the file's lines.
    """
    programs = folder / "programs"
    programs.mkdir()
    (programs / "python").write_text(
        "#!/usr/bin/env bash\n"
        'if [[ $3 == list ]]; then printf "%s\\n" numpy==2.1.0 numpy-ext==1 torch==2.11.0a0+nv26.3 torchvision==0.26\n'
        'else { echo "$@"; for word; do [[ ! -f $word ]] || cat "$word"; done; } >>"$RECORD"; env >"$RECORD.env"; fi\n'
    )
    (programs / "python").chmod(0o755)
    work = folder / "work"
    work.mkdir()
    (work / "requirements.txt").write_bytes((ROOT / "requirements.txt").read_bytes())
    record = folder / "record"
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(record), **variables}
    assert ("SHELL", '["/bin/bash", "-o", "pipefail", "-c"]') in instructions(dockerfile)
    for name, command in instructions(dockerfile):
        if name == "RUN" and "pip" in command:
            subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=work, env=environment, check=True)
    assert [path.name for path in work.iterdir()] == ["requirements.txt"]  # nothing else gets into the image
    return record.read_text().splitlines()


def pins() -> list[str]:
    return (ROOT / "requirements.txt").read_text().splitlines()


def test_the_gpu_image_keeps_its_torch_and_numpy(tmp_path: Path) -> None:
    installed, *lines = run_steps("Dockerfile", tmp_path, PIP_CONSTRAINT="/etc/pip/constraint.txt")
    assert installed == "-m pip install --no-cache-dir -r wanted.txt -c kept.txt"
    ours = [line for line in pins() if not line.startswith(("torch==", "numpy=="))]
    assert len(ours) == len(pins()) - 3
    assert lines == [*ours, "numpy==2.1.0", "torch==2.11.0a0+nv26.3"]
    assert "PIP_CONSTRAINT=\n" in (tmp_path / "record.env").read_text()


def test_the_cpu_image_takes_torch_from_its_own_index(tmp_path: Path) -> None:
    first, torch, second, *lines = run_steps("Dockerfile.cpu", tmp_path)
    assert first == ("-m pip install --no-cache-dir -r torch.txt --index-url https://download.pytorch.org/whl/cpu")
    assert [torch] == [line for line in pins() if line.startswith("torch==")]
    assert second == "-m pip install --no-cache-dir -r requirements.txt"
    assert lines == pins()


def docker(tmp_path: Path, command: str) -> list[str]:
    """The arguments of the `docker` that a command line starts."""
    program = tmp_path / "docker"
    program.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_launching_a_container(tmp_path: Path) -> None:
    default = docker(tmp_path, "bash scripts/docker/launch.sh")
    assert default[:2] == ["run", "--rm"]
    assert default[-4:] == ["bart_pyt", "bash", "-c", "bash"]
    assert default[default.index("--gpus") + 1] == "all"
    assert default[default.index("--volume") + 1] == f"{ROOT}:/workspace/bart"
    given = docker(tmp_path, "bash scripts/docker/launch.sh 'nvidia-smi -L && ls' 0,3")
    assert given[-4:] == ["bart_pyt", "bash", "-c", "nvidia-smi -L && ls"]
    assert given[given.index("--gpus") + 1] == '"device=0,3"'
    without = docker(tmp_path, "bash scripts/docker/launch.sh bash none")
    assert without[-4:] == ["bart_pyt:cpu", "bash", "-c", "bash"]
    assert "--gpus" not in without


def test_building_the_images(tmp_path: Path) -> None:
    built = docker(tmp_path, "bash scripts/docker/build.sh --build-arg A=b")
    assert built == "build --pull --tag bart_pyt --file Dockerfile --build-arg A=b .".split()
    built = docker(tmp_path, "cd / && bash $OLDPWD/scripts/docker/build.sh --cpu --no-cache")
    assert built == "build --pull --tag bart_pyt:cpu --file Dockerfile.cpu --no-cache .".split()
