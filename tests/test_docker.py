"""The images, as far as a machine without a container engine can try them."""

from __future__ import annotations

import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def docker(tmp_path: Path, command: str, security: str = "[]") -> list[str]:
    """The arguments of the `docker` that a command line starts, on an engine with some security options."""
    program = tmp_path / "docker"
    program.write_text(f'#!/usr/bin/env bash\n[[ $1 != info ]] || set -- "{security}"\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def values(arguments: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(arguments) if name == option]


def test_launching_a_container(tmp_path: Path) -> None:
    default = docker(tmp_path, "bash scripts/docker/launch.sh")
    assert default[:2] == ["run", "--rm"]
    assert default[-4:] == ["bart_pyt", "bash", "-c", "bash"]
    assert values(default, "--gpus") == ["all"] and "memlock=-1" in values(default, "--ulimit")
    assert values(default, "--volume") == [f"{tmp_path}/hub:/huggingface", f"{ROOT}:/workspace/bart"]
    assert values(default, "--user") == [f"{os.getuid()}:{os.getgid()}"]
    assert {"HOME=/tmp", "HF_HOME=/huggingface"} <= {*values(default, "--env")} and (tmp_path / "hub").is_dir()
    assert {"--network=host", "--ipc=host"} <= {*default} and values(default, "--stop-timeout") == ["120"]
    relative = docker(tmp_path, f"cd {tmp_path} && HF_HOME=other bash {ROOT}/scripts/docker/launch.sh")
    assert values(relative, "--volume")[0] == f"{tmp_path}/other:/huggingface"  # a bare name would be a volume's
    assert "--user" not in docker(tmp_path, "bash scripts/docker/launch.sh", "[name=rootless]")
    given = docker(tmp_path, "bash scripts/docker/launch.sh 'nvidia-smi -L && ls' 0,3")
    assert given[-4:] == ["bart_pyt", "bash", "-c", "nvidia-smi -L && ls"]
    assert values(given, "--gpus") == ['"device=0,3"']
    without = docker(tmp_path, "bash scripts/docker/launch.sh bash none")
    assert without[-4:] == ["bart_pyt:cpu", "bash", "-c", "bash"]
    assert "--gpus" not in without and "--ulimit" not in without
    script = docker(tmp_path, "cd / && bash $OLDPWD/scripts/docker/launch.sh scripts/quickstart.sh none")
    assert script[-1] == "bash scripts/quickstart.sh"  # a path in the container


def test_building_the_images(tmp_path: Path) -> None:
    built = docker(tmp_path, "bash scripts/docker/build.sh --build-arg A=b")
    assert built == "build --pull --tag bart_pyt --file Dockerfile --build-arg A=b .".split()
    built = docker(tmp_path, "cd / && bash $OLDPWD/scripts/docker/build.sh --cpu --no-cache")
    assert built == "build --pull --tag bart_pyt:cpu --file Dockerfile.cpu --no-cache .".split()


@pytest.mark.parametrize("script", ["launch.sh bash none", "build.sh --cpu"])
def test_a_missing_docker_is_one_line(script: str, tmp_path: Path) -> None:
    for name in ("bash", "dirname", "sed"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        ["bash", *f"scripts/docker/{script}".split()], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True
    )
    message = f"{script.split()[0]}: error: docker is not on PATH; https://docs.docker.com/engine/install tells how"
    assert done.returncode == 2 and done.stderr.decode() == f"{message} to install it\n"


@pytest.mark.slow
@pytest.mark.network
def test_the_cpu_image_is_built_and_its_files_are_the_callers(tmp_path: Path) -> None:
    """DOCKER_BUILD_OPTIONS may name another base, such as `--pull=false --build-arg FROM_IMAGE_NAME=...`."""
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("no docker daemon here")
    build = f"bash scripts/docker/build.sh --cpu {os.environ.get('DOCKER_BUILD_OPTIONS', '')}"
    subprocess.run(["bash", "-c", build], cwd=ROOT, check=True)
    of_checkout = {".git", ".venv", "results", "data"}
    shutil.copytree(ROOT, tmp_path / "checkout", ignore=lambda folder, _: of_checkout if folder == str(ROOT) else set())
    command = "source scripts/setup_env.sh requirements.txt && python -m utils.corpora.sample_corpus --output_dir data"
    launch = ["bash", "scripts/docker/launch.sh", command, "none"]
    done = subprocess.run(launch, cwd=tmp_path / "checkout", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [*(tmp_path / "checkout/data").rglob("*")]
    assert made and {path.stat().st_uid for path in made} == {os.getuid()}
    assert not (tmp_path / "checkout/.venv").exists()
