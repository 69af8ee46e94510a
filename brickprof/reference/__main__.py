"""``python -m brickprof.reference --config tiny --steps 200 --fault alb-044a``

Enters: the command line. Leaves: a training, watched by brickprof (its diagnosis is printed at the end), exit code 0,
or 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
from pathlib import Path

from brickprof.errors import BrickprofError
from brickprof.reference import config as configs
from brickprof.reference import zoo
from brickprof.settings import RUN_VARIABLE


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m brickprof.reference", description="The reference training of brickprof."
    )
    parser.add_argument("--config", default="tiny", help="tiny, 50m, 124m, 350m, or a YAML file; default %(default)s")
    parser.add_argument("--steps", type=int, help="updates to make, instead of the configuration's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change one field; again for more"
    )
    parser.add_argument(
        "--fault", help="the id of a fault (`brickprof zoo --list`): the same training with that mistake"
    )
    parser.add_argument("--out", type=Path, help="folder for checkpoints; none are written without it")
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint in --out")
    parser.add_argument("--device", help="cpu or cuda; default: cuda where there is one")
    parser.add_argument("--kernels", choices=configs.KERNELS, help="what computes; auto: our kernels on CUDA devices")
    parser.add_argument("--runs", type=Path, default=None, help="folder for brickprof's record; default brickprof-runs")
    args = parser.parse_args(arguments)
    try:
        return _train(args)
    except BrickprofError as error:
        print(f"brickprof: {error}", file=sys.stderr)
        return error.exit_code


def _train(args: argparse.Namespace) -> int:
    steps = () if args.steps is None else (f"steps={args.steps}",)
    from brickprof.reference.train import Trainer

    make: type[Trainer] = Trainer
    if args.fault:
        fault = zoo.find(args.fault)
        if fault.family != "reference":
            sys.argv = [str(fault.path), *fault.args]
            runpy.run_path(str(fault.path), run_name="__main__")
            return 0
        make = importlib.import_module(f"brickprof.reference.faults.{fault.path.stem}").TRAINER
        steps = (*fault.settings, *steps)
    kernels = () if args.kernels is None else (f"kernels={args.kernels}",)
    config = configs.read(args.config, (*steps, *args.set, *kernels))
    trainer = make(config, out=args.out, device=args.device)
    if args.resume:
        trainer.resume()
    if os.environ.get(RUN_VARIABLE):
        trainer.run()  # a supervisor is watching already
        return 0
    import brickprof

    with brickprof.attach(trainer.model, trainer.optimizer, out=args.runs) as session:
        trainer.run()
    print(session.diagnose())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
