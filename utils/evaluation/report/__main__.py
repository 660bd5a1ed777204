"""The command: `python -m utils.evaluation.report RUN_DIR`."""

from utils.app.commands import run_program

if __name__ == "__main__":
    run_program("utils.evaluation.report.building")
