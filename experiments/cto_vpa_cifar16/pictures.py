"""Pictures of one seed: triggers before and after the search on test images, and where updates lie.

    export FEDSIM_DATA_MIRROR=/path/to/mirror
    python experiments/cto_vpa_cifar16/pictures.py OUT [--seed 0] [--set KEY=VALUE]

Plays some arms of the sweep up to the end of the attack's window. OUT then holds triggers-ARM.png, shares.png
and shares.json: by arm and round, the mean share of |delta| inside V over the malicious updates as sent.
"""

import argparse
import json
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attacks.triggers import Trigger
from fedsim.contracts import Tensors
from fedsim.plugins import search_in
from fedsim.report.triggers import draw_shares, draw_triggers, share_inside
from fedsim.run.adversary import Adversary
from fedsim.run.assembly import Parts, assemble
from fedsim.run.private_store import PrivateStore
from fedsim.run.round_loop import RoundLoop
from fedsim.run.threads import one_thread
from fedsim.run.transports import engine_federation
from fedsim.sweep.cells import cells_of
from fedsim.sweep.file import read_sweep

FILE = Path(__file__).with_name("experiment.toml")
ARMS = ("literal", "random_trigger", "repaired_full", "full_unprojected")
SHOWN = 6  # test images


@dataclass(frozen=True)
class Watched(Adversary):
    """Notes how much of each malicious update lies inside V."""

    shares: dict[int, float] = field(default_factory=dict)

    def rewrite(self, state, cohort, *rest):
        sent = super().rewrite(state, cohort, *rest)
        if (
            self.active(cohort.round)
            and (places := self.places(sent))
            and (mask := self.mask(state)) is not None
        ):
            found = [share_inside(sent.updates[place], mask)[0] for place in places]
            self.shares[cohort.round] = sum(found) / len(found)
        return sent

    def mask(self, state: Tensors) -> torch.Tensor | None:
        """[d] bool, V; None where the arm chooses none."""
        names = [name for name, *_ in self.threat.layout.floats]
        if f"V/{names[0]}" not in state:
            return None
        return torch.cat([state[f"V/{name}"].flatten() for name in names])


def played(parts: Parts, folder: Path) -> tuple[Watched, Tensors, Tensors]:
    """The adversary and its state before the first and after the last round of the window."""
    plain = Adversary.of(parts)
    adversary = Watched(plain.attack, plain.threat, plain.forced, plain.parts)
    with one_thread(), closing(engine_federation(parts, PrivateStore(folder, 2**30))) as federation:
        loop = RoundLoop(parts, federation, None, adversary)
        state = loop.start()
        before = state.attack
        for _ in range(adversary.threat.window[1]):
            state, _ = loop.play(state)
    return adversary, before, state.attack


def shown(parts: Parts, state: Tensors) -> torch.Tensor:
    """Test images with the trigger, in [0, 1]."""
    trigger, batch = Trigger.from_state(state), parts.data.test.batch(torch.arange(SHOWN))
    return (trigger.stamp(batch.x) - trigger.black.float()) / (trigger.white - trigger.black).float()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("out", type=Path)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the sweep file"
    )
    told = asked.parse_args()
    told.out.mkdir(parents=True, exist_ok=True)
    search_in(FILE.parent)
    lines, sizes, window = [], [], None
    for cell in cells_of(read_sweep(FILE, told.set)):
        arm = cell.choices["attack"]
        if arm not in ARMS:
            continue
        parts = assemble(cell.with_seed(told.seed), told.seed)
        adversary, before, after = played(parts, told.out / "private")
        window = adversary.threat.window
        clean = parts.data.test.x[:SHOWN] / 255
        versions = [("before", shown(parts, before)), ("after", shown(parts, after))]
        draw_triggers(clean, versions, told.out / f"triggers-{arm}.png", f"{arm}: the trigger on test images")
        if adversary.shares:
            lines.append((arm, list(adversary.shares), list(adversary.shares.values())))
            sizes.append(float(adversary.mask(after).double().mean()))
    title = "Malicious updates: share inside V"
    draw_shares(lines, told.out / "shares.png", title=title, size=min(sizes), window=window)
    shares = {arm: dict(zip(rounds, values, strict=True)) for arm, rounds, values in lines}
    (told.out / "shares.json").write_text(json.dumps({"size": sizes, "shares": shares}, indent=1))


if __name__ == "__main__":
    main()
