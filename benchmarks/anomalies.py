"""What `charlm score` finds in a log: planted anomalies of five sorts, with the model as trained and with --dynamic.

    python benchmarks/anomalies.py                    # trains for a minute, scores, prints a table
    python benchmarks/anomalies.py --run RUN --lr X   # scores with a run that is there, learning at another rate

The log is generated: lines of several services, with times, levels, ids, paths and numbers. In its second part, which
is scored, a service appears that the training text does not know; its lines are no anomalies.
"""

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

import charlm
from charlm.inference import TrainedModel
from charlm.inference.dynamic import Adaptation
from charlm.inference.lines import LINE_ADAPTATION, score_lines
from charlm.system.formatting import bits_to_nats, nats_to_bits

TRAINING, SCORED, PLANTED = 100_000, 20_000, 20
"""Lines to train on, lines to score, and anomalies of each sort among these."""
TOP = 0.01
"""Share of the lines that somebody looks at."""

USERS = ["alice", "bruno", "chen", "dora", "emil", "farah", "goran", "hanna", "ivo", "jana"]
PATHS = ["orders", "users", "carts", "items", "invoices", "reports"]
QUEUES = ["mail", "billing", "thumbnails", "exports"]


def gateway(draw: random.Random) -> str:
    method, path = draw.choice(["GET", "GET", "GET", "POST", "PUT"]), draw.choice(PATHS)
    status = draw.choices([200, 201, 304, 404, 500], [80, 8, 8, 3, 1])[0]
    path = f"/api/v1/{path}/{draw.randrange(10_000)}"
    return (
        f"{'WARN' if status >= 500 else 'INFO'} {method} {path} {status} {draw.randrange(2, 400)}ms req={hexes(draw)}"
    )


def auth(draw: random.Random) -> str:
    user, address = draw.choice(USERS), ".".join(["10", *(str(draw.randrange(256)) for _ in range(3))])
    if draw.random() < 0.05:
        return f"WARN login failed user={user} ip={address} attempt={draw.randrange(1, 4)}"
    return f"INFO login ok user={user} ip={address} session={hexes(draw)}"


def database(draw: random.Random) -> str:
    if draw.random() < 0.03:
        return f"WARN slow query on {draw.choice(PATHS)} took {draw.randrange(500, 3000)} ms"
    return f"DEBUG select from {draw.choice(PATHS)} rows={draw.randrange(200)} took {draw.uniform(0.1, 20):.1f} ms"


def cache(draw: random.Random) -> str:
    key = f"{draw.choice(PATHS)}:{draw.randrange(10_000)}"
    return f"DEBUG {draw.choice(['hit', 'hit', 'miss', 'evict'])} key={key} ttl={draw.choice([60, 300, 3600])}"


def worker(draw: random.Random) -> str:
    return f"INFO job {draw.randrange(10**6):06d} done queue={draw.choice(QUEUES)} in {draw.randrange(20, 5000)} ms"


def search(draw: random.Random) -> str:
    """The service that comes later."""
    return f"INFO index shard={draw.randrange(8)} docs={draw.randrange(10**5)} refreshed in {draw.randrange(5, 90)} ms"


SERVICES: dict[str, Callable[[random.Random], str]] = {
    "gateway": gateway,
    "auth": auth,
    "db": database,
    "cache": cache,
    "worker": worker,
}


def hexes(draw: random.Random) -> str:
    return f"{draw.randrange(16**8):08x}"


# Each sort makes an anomaly of a service's name and message.


def unseen_message(service: str, message: str, draw: random.Random) -> tuple[str, str]:
    texts = ["ERROR disk /dev/sda1 is full", "ERROR certificate expires in 2 days", "FATAL panic: nil pointer",
             "ERROR connection refused by peer", "WARN clock moved backwards by 3 s"]  # fmt: skip
    return service, draw.choice(texts)


def wrong_service(service: str, message: str, draw: random.Random) -> tuple[str, str]:
    return draw.choice([name for name in SERVICES if name != service]), message


def cut_short(service: str, message: str, draw: random.Random) -> tuple[str, str]:
    return service, message[: draw.randrange(8, len(message) - 4)]


def injected(service: str, message: str, draw: random.Random) -> tuple[str, str]:
    texts = ["1' OR '1'='1", "../../etc/passwd", "<script>alert(1)</script>", "%00%2e%2e%2f", "${jndi:ldap://x}"]
    path = f"/api/v1/{draw.choice(PATHS)}/{draw.choice(texts)}"
    return "gateway", f"INFO GET {path} 200 {draw.randrange(2, 400)}ms req={hexes(draw)}"


def wrong_value(service: str, message: str, draw: random.Random) -> tuple[str, str]:
    return draw.choice(
        [
            ("auth", f"INFO login ok user={draw.randrange(10_000)} ip={draw.choice(USERS)} session={hexes(draw)}"),
            ("db", f"DEBUG select from {draw.choice(PATHS)} rows=-1 took nan ms"),
            ("cache", f"DEBUG hit key={draw.choice(PATHS)}:None ttl={-draw.randrange(300)}"),
            ("worker", f"INFO job {hexes(draw)} done queue= in {draw.randrange(10**8, 10**9)} ms"),
        ]
    )


SORTS: dict[str, Callable[[str, str, random.Random], tuple[str, str]]] = {
    "unseen message": unseen_message,
    "message of another service": wrong_service,
    "line cut short": cut_short,
    "injection in a path": injected,
    "wrong kind of value": wrong_value,
}


def log(seed: int, lines: int, *, start_s: float, planted: int = 0) -> Iterator[tuple[str, str]]:
    """Lines, each with the sort of its anomaly or "". With anomalies, the later service appears after a third."""
    draw, time_s = random.Random(seed), start_s
    sorts = dict(zip(draw.sample(range(lines), planted * len(SORTS)), [*SORTS] * planted, strict=True))
    for number in range(lines):
        time_s += draw.expovariate(20)
        sort = sorts.get(number, "")
        service = draw.choices([*SERVICES], [8, 3, 6, 6, 3])[0]
        message = SERVICES[service](draw)
        if sort:
            service, message = SORTS[sort](service, message, draw)
        elif planted and number > lines / 3 and draw.random() < 0.005:
            service, message = "search", search(draw)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s))
        yield f"{stamp}.{int(time_s * 1000) % 1000:03d}Z web{draw.randrange(1, 5)} {service} {message}", sort


def scores_of(model: TrainedModel, lines: list[str], adaptation: Adaptation | None) -> tuple[np.ndarray, float]:
    """Of each line, bits per character and the bits of its most surprising character, [2, N]; and characters/s."""
    blocks = ("".join(f"{line}\n" for line in lines[at : at + 1000]).encode() for at in range(0, len(lines), 1000))
    began_s = time.perf_counter()
    scores = [
        (nats_to_bits(score.nats_per_char), nats_to_bits(score.per_char_nats.max()))
        for scores_of_block in score_lines(
            model, blocks, "log", unknown_nats=bits_to_nats(20), per_char=True, adaptation=adaptation
        )
        for score in scores_of_block
    ]
    return np.array(scores).T, sum(map(len, lines)) / (time.perf_counter() - began_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--run", type=Path, help="a run of an earlier call, in place of training")
    parser.add_argument("--lr", type=float, nargs="*", default=[LINE_ADAPTATION.lr])
    parser.add_argument("--decay", type=float, default=LINE_ADAPTATION.decay)
    parser.add_argument("--seed", type=int, default=2, help="of the scored log; choose rates with another one")
    parser.add_argument("--lines", type=int, default=SCORED, help="how many lines to score")
    parser.add_argument("--keep", type=Path, help="a folder for the log and the run")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True)
    start_s = 1_770_000_000.0
    if options.run:
        model = charlm.load(options.run)
    else:
        text = folder / "app.log"
        text.write_text("".join(f"{line}\n" for line, _ in log(1, TRAINING, start_s=start_s)))
        overrides = {"data.unit": "line"}
        model = charlm.train(text, minutes=options.minutes, overrides=overrides, run_dir=folder / "run").load()
    found = [
        *log(options.seed, options.lines, start_s=start_s + TRAINING / 20, planted=PLANTED * options.lines // SCORED)
    ]
    lines, sorts = [line for line, _ in found], np.array([sort for _, sort in found])
    ways = {"static": None} | {
        f"dynamic {lr:g}": replace(LINE_ADAPTATION, lr=lr, decay=options.decay) for lr in options.lr
    }
    columns = [["", *SORTS, "all", "lines of the new service among the top", "mean", "characters/s"]]
    for name, adaptation in ways.items():
        by_ranking, chars_per_s = scores_of(model, lines, adaptation)
        for ranking, scores in zip(["per character", "most surprising character"], by_ranking, strict=True):
            top = np.argsort(-scores, kind="stable")[: int(TOP * len(lines))]
            shares = [
                np.isin(np.flatnonzero(chosen), top).mean() for chosen in [*(sorts == s for s in SORTS), sorts != ""]
            ]
            later = sum(" search INFO index" in lines[place] for place in top)
            figures = [f"{later}", f"{scores.mean():.2f} bits", f"{chars_per_s:,.0f}"]
            columns.append([f"{name}, {ranking}", *(f"{share:.0%}" for share in shares), *figures])
    for row in zip(*columns, strict=True):
        print("| " + " | ".join(row) + " |")
        if not row[0]:
            print("|---" * len(columns) + "|")


if __name__ == "__main__":
    main()
