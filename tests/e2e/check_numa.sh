#!/bin/sh
# Where weights lie on a machine with two memory nodes, for those who have none: an emulated one (qemu, as slow as that is)
# runs MOEBIUS with and without --numa off, and prints what /proc/PID/numa_maps says while it generates: MiB of memory that
# the program wrote, by policy and node. The text must be the same. No part of the test run.
#
# usage: check_numa.sh MOEBIUS MODEL VMLINUZ   (Debian: qemu-system-x86, busybox-static, cpio; the kernel of a
#                                               linux-image-cloud-amd64, which needs no modules for this)
set -eu
moebius=$1 model=$2 kernel=$3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root"/bin "$root"/dev "$root"/proc "$root"/sys "$root"/tmp
cp "$moebius" "$root/bin/moebius"
cp "$model" "$root/model.gguf"
cp "$(command -v busybox)" "$root/bin/busybox"
for library in $(ldd "$moebius" | grep -o '/[^ ]*'); do
    mkdir -p "$root${library%/*}"
    cp -L "$library" "$root$library"
done

cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /tmp
mount -t devtmpfs none /dev

generate() { # OPTIONS...
    : >/tmp/text
    moebius generate -m /model.gguf -p 'Once upon a time' -n 200 --temp 0 --cold "$@" >/tmp/text 2>/tmp/log &
    until [ "$(wc -c </tmp/text)" -gt 100 ]; do usleep 20000; done
    cp /proc/$!/numa_maps /tmp/maps
    for task in /proc/$!/task/*; do
        echo "thread on processors $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "$task/status")"
    done
    wait
    cat /tmp/log
    awk '/anon=/ {
            policy = $3 ~ /^\(/ ? $2 " " $3 : $2
            for (i = 3; i <= NF; i++)
                if (split($i, x, "=") == 2)
                    pages[policy, x[1]] += x[2]
            seen[policy] = 1
        }
        END {
            for (p in seen)
                printf "%-20s node 0: %7.1f MiB, node 1: %7.1f MiB\n", p, pages[p, "N0"] / 256, pages[p, "N1"] / 256
        }' /tmp/maps | sort
    echo "text: $(md5sum </tmp/text)"
}

echo
for options in '' '--numa off' '-t 3' '--expert-ram 40%'; do
    echo "== moebius generate $options"
    generate $options
done
poweroff -f
INIT
chmod +x "$root/init"

(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$root.gz"
trap 'rm -rf "$root" "$root.gz"' EXIT
qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 4 -m 1G -nographic -no-reboot -nic none \
    -object memory-backend-ram,id=m0,size=512M -numa node,nodeid=0,cpus=0-1,memdev=m0 \
    -object memory-backend-ram,id=m1,size=512M -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -kernel "$kernel" -initrd "$root.gz" -append 'console=ttyS0 quiet panic=-1 numa_balancing=disable' </dev/null
