#!/bin/bash
# Two drives with a mirror, one of which is slowed down while experts are read: the other takes over, and the first is
# used again when it recovers. Needs root, loop devices and control groups with block devices; takes half a minute. No part
# of the test run.
#
# usage: tests/e2e/check_drives.sh BUILD_FOLDER MODEL.gguf   (ninja -C BUILD_FOLDER moebius tests/unit/bench_reads before)
set -eu
build=${1:?usage: check_drives.sh BUILD_FOLDER MODEL.gguf}
model=${2:?usage: check_drives.sh BUILD_FOLDER MODEL.gguf}
work=$(mktemp -d)
group=/sys/fs/cgroup/moebius-$$ # version 2, or 1:
[ -e /sys/fs/cgroup/cgroup.controllers ] || group=/sys/fs/cgroup/blkio/moebius-$$
loops=()

clean_up() {
    umount "$work"/m* 2>/dev/null || true
    for l in "${loops[@]}"; do losetup -d "$l"; done
    rmdir "$group" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT

limit() { # BYTES_PER_S, 0: none; of the second drive
    device=$(cat /sys/block/"$(basename "${loops[1]}")"/dev)
    if [ -e "$group/io.max" ]; then
        echo "$device rbps=$([ "$1" = 0 ] && echo max || echo "$1")" >"$group/io.max"
    else
        echo "$device $1" >"$group/blkio.throttle.read_bps_device"
    fi
}

read_mb() { # DRIVE: read from it so far
    awk '{print int($3 / 2048)}' /sys/block/"$(basename "${loops[$1]}")"/stat
}

during() { # SECONDS: sets first and second, the MB read from each meanwhile
    local a b
    a=$(read_mb 0) b=$(read_mb 1)
    sleep "$1"
    first=$(($(read_mb 0) - a)) second=$(($(read_mb 1) - b))
    echo "first drive $first MB, second $second MB"
}

mkdir "$group"
for i in 0 1; do
    truncate -s $((($(stat -c %s "$model") >> 20) + 64))M "$work/image$i"
    mkfs.ext4 -q -F "$work/image$i"
    loops+=("$(losetup -f --show "$work/image$i")")
    mkdir "$work/m$i"
    mount "${loops[$i]}" "$work/m$i"
done
"$build/moebius" prepare "$model" --to "$work/m0/s,$work/m1/s" --mirror

"$build/tests/unit/bench_reads" "$model" "$work/m0/s,$work/m1/s" auto on 8 14 2>"$work/said" &
pid=$!
echo $pid >"$group/cgroup.procs"
sleep 1
echo "both as fast as they are:"
during 3
[ $((second * 4)) -gt "$first" ]
limit 20000000
echo "the second at 20 MB/s:"
during 4
[ "$first" -gt $((second * 10)) ]
limit 0
sleep 1
echo "and back:"
during 3
[ $((second * 4)) -gt "$first" ]
wait $pid
cat "$work/said"
grep -q "m1/s: slowed down to" "$work/said"
echo "ok"
