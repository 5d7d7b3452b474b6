#!/usr/bin/env python3
"""Asks Weir and ClickHouse (chDB) the same segment questions of the same rows, in alternation, and compares time and counts.

side_by_side.py WEIR FOLDER [--scale 1.0] [--runs 20] [--only SQL-1,SQL-3] [--no-bitmaps]

WEIR is the command that starts Weir's side, the example `segments` of weir-state; FOLDER keeps ClickHouse's tables between runs. At full size every count must be the known one;
at any size both must count alike. A count that differs ends the run without a time. The last line is one JSON object.
"""
import argparse, json, os, resource, shlex, statistics, subprocess, sys, time
from string import Template

from chdb import session

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = {"user_profile_b": 12_836_360, "user_profile_a": 4_528_641}
COUNTS = {"SQL-1": 264282, "SQL-2": 10267364, "SQL-3": 1039835, "SQL-4": 21416, "SQL-5": 74356, "SQL-6": 5945}
SIX = "channel_type = 'nature' and user_type = 2 and lang = 'zh_CN' and region = 'CHN' and country = 'CHN' and gender = 0"
TSLA = "hasAny({}user_watch_list, ['TSLA'])"
JOIN = (
    "select count(*) from user_profile_b b, user_profile_a a where a.uuid = b.uuid and a.channel_type = 'nature' and "
    "a.user_type = 2 and b.lang = 'zh_CN' and b.region = 'CHN' and b.country = 'CHN' and b.gender = 0"
)
QUERIES = {
    "SQL-1": f"select count(*) from user_profile_b where {SIX}",
    "SQL-2": "select count(*) from user_profile_b where score > 0.2",
    "SQL-3": f"select count() from user_profile_b where {TSLA.format('')}",
    "SQL-4": f"select count() from user_profile_b where {SIX} and {TSLA.format('')}",
    "SQL-5": JOIN,
    "SQL-6": f"{JOIN} and {TSLA.format('a.')}",
}
# The same in the words of MySQL and TiDB: Weir only, for the counts.
MYSQL = {name: text.replace("hasAny(", "JSON_CONTAINS(").replace("['TSLA']", "'\"TSLA\"', '$'") for name, text in QUERIES.items()}
VALUES = [("channel_type", "nature"), ("user_type", "2"), ("lang", "zh_CN"), ("region", "CHN"), ("country", "CHN"), ("gender", "0")]
BITMAPS = {"SQL-1": VALUES, "SQL-3": [("watch", "TSLA")], "SQL-4": [("watch", "TSLA"), *VALUES]}
# How many times less processor time than ClickHouse's scan, and than its bitmap tables.
AIMS = {"SQL-1": 500, "SQL-2": 30, "SQL-3": 1000, "SQL-4": 500, "SQL-5": 500, "SQL-6": 500}
BITMAP_AIM = 20


class ClickHouse:
    def __init__(self, folder, scale):
        self.session = session.Session(folder)
        self.ask("create database if not exists crowd")
        for table, rows in ROWS.items():
            rows = int(rows * scale)
            exists = self.ask(f"exists crowd.{table}") == "1"
            if exists and int(self.ask(f"select count() from crowd.{table}")) == rows:
                continue
            a = table == "user_profile_a"
            uuid = "number + 1"
            if a:
                uuid = "intDiv(number * 12836360, 4528641) + 1 + if(cityHash64(number, 99) % 5 = 0, 20000000, 0)"
            given = {"T": f"crowd.{table}", "N": rows, "SALT": 5 if a else 11, "SYM": "String", "UUID": uuid}
            self.ask(f"drop table if exists crowd.{table}")
            began = time.time()
            for part in ("crowd_schema.sql", "crowd_gen.sql"):
                with open(os.path.join(HERE, part), encoding="utf-8") as sql:
                    self.ask(Template(sql.read()).substitute(given))
            self.ask(f"optimize table crowd.{table} final")
            print(f"clickhouse: {rows} rows of {table} made in {time.time() - began:.1f} s", flush=True)
        self.ask("use crowd")

    def ask(self, sql, form="TabSeparated"):
        return str(self.session.query(sql, form)).strip()

    def bitmaps(self):
        """The tags as ClickHouse's own bitmaps, one row per value."""
        if self.ask("exists crowd.tag_bitmaps") == "1":
            return
        self.ask(
            "create table crowd.tag_bitmaps (tag LowCardinality(String), value String, users AggregateFunction(groupBitmap, UInt32)) "
            "engine = AggregatingMergeTree order by (tag, value) settings index_granularity = 1"
        )
        for tag, _ in VALUES:
            self.ask(
                f"insert into crowd.tag_bitmaps select '{tag}', toString({tag}), groupBitmapState(toUInt32(uuid)) "
                f"from crowd.user_profile_b group by {tag}"
            )
        self.ask(
            "insert into crowd.tag_bitmaps select 'watch', sym, groupBitmapState(toUInt32(uuid)) from crowd.user_profile_b "
            "array join user_watch_list as sym group by sym"
        )
        self.ask("optimize table crowd.tag_bitmaps final")

    def time(self, sql):
        """Count, seconds, processor seconds. The cache of earlier conditions is off: it would answer, not the scan."""
        full = f"{sql} settings max_threads = 2, use_query_condition_cache = 0"
        usage = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        cpu, began = usage(), time.perf_counter()
        count = int(self.ask(full))
        return count, time.perf_counter() - began, usage() - cpu


def bitmap_query(values):
    if len(values) == 1:
        ((tag, value),) = values
        one = f"select groupBitmapMergeState(users) from crowd.tag_bitmaps where tag = '{tag}' and value = '{value}'"
        return f"select bitmapCardinality(({one}))"
    listed = ", ".join(f"('{tag}', '{value}')" for tag, value in values)
    return f"select bitmapCardinality(groupBitmapAndState(users)) from crowd.tag_bitmaps where (tag, value) in ({listed})"


class Weir:
    """The program that loads the rows and then answers one line of SQL after another."""

    def __init__(self, program, clickhouse, scale):
        self.process = subprocess.Popen(shlex.split(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for table in ROWS:
            # In pieces: what is not sent yet need not be in memory.
            rows, step = int(ROWS[table] * scale), 500_000
            self.line(f"load {table}")
            for first in range(0, rows, step):
                piece = clickhouse.session.query(
                    f"select uuid, channel_type, user_type, lang, region, country, gender, score, arrayStringConcat(user_watch_list, ','), "
                    f"toUnixTimestamp(reg_time) from crowd.{table} order by uuid limit {step} offset {first}",
                    "TabSeparated",
                )
                self.process.stdin.write(piece.bytes())
            self.line("")
            loaded = self.answer()
            if loaded["rows"] != rows:
                sys.exit(f"weir loaded {loaded['rows']} rows of {table}, there are {rows}")
            print(f"weir: {json.dumps(loaded)}", flush=True)

    def line(self, text):
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("weir has ended")
        return json.loads(line)

    def ask(self, sql):
        self.line(f"sql {sql}")
        answer = self.answer()
        if "error" in answer:
            sys.exit(f"weir refuses {sql}: {answer['error']}")
        return answer["count"], answer["seconds"], answer["cpu_seconds"]


def summary(runs):
    walls = sorted(wall for _, wall, _ in runs)
    # The mean, not the median: the system counts a thread's time in ticks, which a short query is often between.
    cpus = [cpu for _, _, cpu in runs]
    p99 = walls[min(len(walls) - 1, int(len(walls) * 0.99))]
    return {"median_ms": statistics.median(walls) * 1e3, "p99_ms": p99 * 1e3, "cpu_ms": max(statistics.fmean(cpus) * 1e3, 1e-3)}


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("weir")
    options.add_argument("folder")
    options.add_argument("--scale", type=float, default=1.0, help="a part of the rows, such as 0.01")
    options.add_argument("--runs", type=int, default=20, help="runs of each query on ClickHouse")
    options.add_argument("--only", default=",".join(QUERIES), help="queries, by name")
    options.add_argument("--no-bitmaps", action="store_true", help="leave ClickHouse's bitmap tables out")
    options = options.parse_args()

    os.makedirs(options.folder, exist_ok=True)
    clickhouse = ClickHouse(os.path.join(options.folder, f"clickhouse-{options.scale}"), options.scale)
    weir = Weir(options.weir, clickhouse, options.scale)
    names = options.only.split(",")
    if not options.no_bitmaps:
        clickhouse.bitmaps()

    for name in names:
        counts = {"weir": weir.ask(QUERIES[name])[0], "weir in MySQL's words": weir.ask(MYSQL[name])[0], "clickhouse": clickhouse.time(QUERIES[name])[0]}
        if name in BITMAPS and not options.no_bitmaps:
            counts["clickhouse bitmaps"] = clickhouse.time(bitmap_query(BITMAPS[name]))[0]
        if options.scale == 1.0:
            counts["known"] = COUNTS[name]
        if len(set(counts.values())) != 1:
            sys.exit(f"{name}: the counts differ, so no time is printed: {counts}")

    result = {"bench": "segments", "checked": True, "scale": options.scale, "queries": {}}
    print(f"{'':8}{'count':>10}  {'weir median':>12} {'p99':>9} {'cpu':>9}  {'clickhouse median':>18} {'p99':>9} {'cpu':>9}  {'cpu ratio':>10} {'aim':>6}  (ms)")
    for name in names:
        ours, theirs, bits = [], [], []
        for _ in range(options.runs):
            # Ours are short: several for each of theirs, so that a p99 means something.
            ours.extend(weir.ask(QUERIES[name]) for _ in range(10))
            theirs.append(clickhouse.time(QUERIES[name]))
            if name in BITMAPS and not options.no_bitmaps:
                bits.append(clickhouse.time(bitmap_query(BITMAPS[name])))
        ours, theirs, count = summary(ours), summary(theirs), ours[0][0]
        result["queries"][name] = entry = {"count": count, "weir": ours, "clickhouse": theirs, "cpu_ratio": theirs["cpu_ms"] / ours["cpu_ms"], "aim": AIMS[name]}
        show = lambda what: f"{what['median_ms']:>12.3f} {what['p99_ms']:>9.3f} {what['cpu_ms']:>9.3f}"
        print(f"{name:8}{count:>10}  {show(ours)}  {'':6}{show(theirs)}  {entry['cpu_ratio']:>10.0f} {AIMS[name]:>6}")
        if bits:
            bits = summary(bits)
            entry |= {"clickhouse_bitmaps": bits, "bitmap_ratio": bits["cpu_ms"] / ours["cpu_ms"], "bitmap_aim": BITMAP_AIM}
            print(f"{'':8}{'':10}  {'':32}  {'bitmaps':6}{show(bits)[1:]}  {entry['bitmap_ratio']:>10.0f} {BITMAP_AIM:>6}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
