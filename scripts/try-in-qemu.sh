#!/bin/sh
# Runs a command as root in a virtual machine with another kernel: for what this machine's kernel lacks.
#
#     scripts/try-in-qemu.sh KERNEL.deb COMMAND [ARGUMENT...]
#
# KERNEL.deb is a kernel package of Debian's (apt-get download linux-image-...-amd64), which is not installed. The machine
# has this one's root folder, read-only, under the same paths, a disk with ext4 at /var/tmp, and memory at /tmp, /run and
# /var/lib. Its exit status is the command's. It takes qemu-system-x86, busybox-static, xz-utils and e2fsprogs, and does
# without KVM, slowly (QEMU_ACCELERATION=kvm asks for it).
#
# QEMU_MEMORY (2048 MiB), QEMU_CPUS (2), QEMU_CPU (max) and QEMU_MODULES (loop nbd ublk_drv zram) change what it has. QEMU_WRITABLE names
# folders that are empty there and on its disk. QEMU_UNPACKED is a folder in which the package was unpacked before, and
# BUSYBOX another busybox. Variables that begin with BIFOLIO_ are handed on.
set -eu

if [ $# -lt 2 ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
package=$(realpath "$1")
shift
busybox=$(command -v "${BUSYBOX:-busybox}") || { echo "busybox is missing; install busybox-static" >&2; exit 2; }
qemu=$(command -v qemu-system-x86_64) || { echo "qemu is missing; install qemu-system-x86" >&2; exit 2; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
unpacked=${QEMU_UNPACKED:-$scratch/kernel}
[ -d "$unpacked" ] || dpkg -x "$package" "$unpacked"
root=$scratch/initramfs
mkdir -p "$root/bin" "$root/modules" "$root/root" "$root/proc"
cp "$busybox" "$root/bin/busybox"

# The modules in the order in which they are loaded: what one needs comes before it.
load() {
    case " $loaded " in *" $1 "*) return ;; esac
    loaded="$loaded $1"
    file=$(find "$unpacked" -name "$(echo "$1" | sed 's/[-_]/[-_]/g').ko*" | head -n 1)
    # One that is built in has no file.
    [ -n "$file" ] || return 0
    plain=$root/modules/$1.ko
    case $file in
    *.xz) xz -dc "$file" >"$plain" ;;
    *.zst) zstd -qdc "$file" >"$plain" ;;
    *) cp "$file" "$plain" ;;
    esac
    for needed in $(tr '\0' '\n' <"$plain" | sed -n 's/^depends=//p' | tr ',' ' '); do load "$needed"; done
    echo "$1" >>"$root/modules/order"
}
loaded=
for module in virtio_pci virtio_blk 9p 9pnet_virtio crc32c_generic ext4 ${QEMU_MODULES:-loop nbd ublk_drv zram}; do load "$module"; done

for word in "$@"; do printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"; done >"$root/command"
cp_env() { env | sed -n "s/^\(BIFOLIO_[A-Z_]*\|RUST_BACKTRACE\)=\(.*\)/export \1='\2'/p"; }
cp_env >"$root/environment"
: >"$root/writable"
for folder in ${QEMU_WRITABLE:-}; do echo "$folder" >>"$root/writable"; done
truncate -s 8G "$scratch/disk"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
while read -r module; do /bin/busybox insmod "/modules/$module.ko" || echo "loading $module failed"; done </modules/order
/bin/busybox mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=524288 root /root || echo "no root folder"
for folder in tmp run var/lib; do /bin/busybox mount -t tmpfs memory "/root/$folder"; done
/bin/busybox mount -t devtmpfs dev /root/dev
/bin/busybox mount -t proc proc /root/proc
/bin/busybox mount -t sysfs sys /root/sys
/bin/busybox mount -t cgroup2 cgroup /root/sys/fs/cgroup
/bin/busybox mkdir -p /root/dev/shm /root/dev/pts
/bin/busybox mount -t tmpfs memory /root/dev/shm
/bin/busybox cp /command /environment /root/run/
/bin/busybox ip link set lo up 2>/dev/null
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
/bin/busybox chroot /root mkfs.ext4 -q /dev/vda && /bin/busybox mount -t ext4 /root/dev/vda /root/var/tmp
number=0
while read -r folder; do
    number=$((number + 1))
    /bin/busybox mkdir "/root/var/tmp/.$number" && /bin/busybox mount --bind "/root/var/tmp/.$number" "/root$folder"
done </writable
/bin/busybox chroot /root /bin/sh -c '. /run/environment; eval "$(cat /run/command)"'
echo "exit status $?" >/root/dev/ttyS1
/bin/busybox poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | "$busybox" cpio -o -H newc 2>/dev/null | gzip -1) >"$scratch/initramfs.gz"

"$qemu" -accel "${QEMU_ACCELERATION:-tcg}" -m "${QEMU_MEMORY:-2048}" -smp "${QEMU_CPUS:-2}" -cpu "${QEMU_CPU:-max}" -display none -no-reboot \
    -kernel "$(find "$unpacked/boot" -name 'vmlinuz-*')" -initrd "$scratch/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1 ${QEMU_APPEND:-}" \
    -virtfs local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap \
    -drive "file=$scratch/disk,format=raw,if=virtio,cache=unsafe" -serial stdio -serial "file:$scratch/status" </dev/null
status=$(sed -n 's/^exit status \([0-9]*\).*/\1/p' "$scratch/status")
exit "${status:-125}"
