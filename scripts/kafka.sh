#!/usr/bin/env bash
# Apache Kafka for tests: fetched once per machine from its published Maven artefacts, started as one broker (KRaft) on 127.0.0.1.
#
#   scripts/kafka.sh                             fetches it; progress to stderr; the folder of its jars, alone, to stdout
#   scripts/kafka.sh serve FOLDER PORT CONTROL   runs a broker with its data in FOLDER until stdin ends; then ends it and
#                                                removes FOLDER. Lines on stdin: "kill" ends the broker at once (SIGKILL),
#                                                "stop" lets it end, "start" starts it again on the same data.
#
# The jars of Kafka and of what it stands on are those in scripts/kafka.jars, by their SHA-256; they lie in the user's cache. Kafka
# binds slf4j 1.7 (a binding for 2.x would not be seen). Needs a Java 17 runtime and curl, which scripts/setup.sh installs.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/env.sh
. scripts/env.sh

VERSION=4.3.1
JARS="$PWD/scripts/kafka.jars"
FROM="${WEIR_MAVEN:-https://repo1.maven.org/maven2}"

say() { printf 'kafka: %s\n' "$*" >&2; }
fail() {
    say "cannot go on: $*"
    exit 1
}

# Another list is another folder.
LIB="$WEIR_CACHE/kafka/$VERSION-$(cksum <"$JARS" | cut -d' ' -f1)"

# Fetches the jars unless they are there. Two that run at once wait for each other.
fetch() {
    [[ ! -e "$LIB/complete" ]] || return 0
    for tool in java curl sha256sum; do
        command -v "$tool" >/dev/null || fail "$tool is missing: scripts/setup.sh --force installs a Java 17 runtime and curl"
    done
    mkdir -p "$WEIR_CACHE/kafka"
    exec 9>"$WEIR_CACHE/kafka/lock"
    flock -n 9 || { say "another fetch is running: waiting for it"; flock 9; }
    [[ ! -e "$LIB/complete" ]] || return 0
    local started=$SECONDS hash path work="$LIB.fetch"
    mkdir -p "$work"
    say "fetching Apache Kafka $VERSION, once for this machine: about 54 MB from $FROM"
    # What an interrupted run has left is kept when it is whole.
    while read -r hash path; do
        printf '%s  %s\n' "$hash" "${path##*/}" >>"$work/sums.new"
        sha256sum --status -c <<<"$hash  $work/${path##*/}" 2>/dev/null ||
            printf 'url = "%s/%s"\noutput = "%s/%s"\n' "$FROM" "$path" "$work" "${path##*/}" >>"$work/urls.new"
    done <"$JARS"
    mv "$work/sums.new" "$work/sums"
    if [[ -e "$work/urls.new" ]]; then
        mv "$work/urls.new" "$work/urls"
        curl --silent --show-error --fail --location --retry 5 --connect-timeout 20 --parallel --parallel-max 8 \
            --config "$work/urls" >&2 || fail "not everything could be fetched, see above; run this again"
    fi
    (cd "$work" && sha256sum --quiet -c sums >&2) || fail "what $FROM gave is not what scripts/kafka.jars names, see above"
    : >"$work/complete"
    mv "$work" "$LIB"
    say "fetched $(wc -l <"$JARS") jars in $((SECONDS - started)) s"
}

# One broker that is its own controller; everything that would wait for a second one is told that there is none.
configuration() {
    cat <<CONFIG
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$3
listeners=PLAINTEXT://127.0.0.1:$2,CONTROLLER://127.0.0.1:$3
advertised.listeners=PLAINTEXT://127.0.0.1:$2
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$1/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
# Tests wait for what a cluster leaves for later.
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
log.cleaner.backoff.ms=200
# Event times of tests are long past, and retention goes by them.
log.retention.ms=-1
CONFIG
}

broker=""
start() {
    java -Xms128m -Xmx512m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$LIB/*" \
        kafka.Kafka "$folder/server.properties" >>"$folder/log" 2>&1 </dev/null 9>&- &
    broker=$!
}
end() {
    [[ -n "$broker" ]] || return 0
    kill "-$1" "$broker" 2>/dev/null || true
    wait "$broker" 2>/dev/null || true
    broker=""
}

serve() {
    folder="$1"
    mkdir -p "$folder"
    trap 'end KILL; rm -rf "$folder"' EXIT
    configuration "$@" >"$folder/server.properties"
    java -Xmx128m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$LIB/*" \
        kafka.tools.StorageTool format -t "AAAAAAAAAAAAAAAAAAAAAQ" -c "$folder/server.properties" >"$folder/log" 2>&1 ||
        { tail -n 20 "$folder/log" >&2; fail "the broker's folder could not be prepared"; }
    start
    # The parent holds the other end: however it ends, this ends too.
    while IFS= read -r line; do
        case "$line" in
            kill) end KILL ;;
            stop) end TERM ;;
            start) [[ -n "$broker" ]] || start ;;
            *) say "unknown order: $line" ;;
        esac
        printf 'done %s\n' "$line"
    done
}

fetch
case "${1:-}" in
    "") printf '%s\n' "$LIB" ;;
    serve)
        (($# == 4)) || fail "usage: scripts/kafka.sh serve FOLDER PORT CONTROL"
        shift
        serve "$@"
        ;;
    *) fail "unknown command $1 (usage: scripts/kafka.sh [serve FOLDER PORT CONTROL])" ;;
esac
