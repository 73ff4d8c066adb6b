# Runs a command in a throwaway copy of a Debian tree: enter.sh TREE RESOLV_CONF [SOURCE:TARGET]... -- COMMAND...
# It has a mount namespace of its own already (debian.py), so that all mounts end with it.
set -euo pipefail
tree=$1 resolv_conf=$2 here=$PWD
shift 2

scratch=$tree/mnt
mount -t tmpfs tmpfs "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
root=$scratch/root
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/run"
mkdir "$root/host"
mount --rbind / "$root/host"
while [ "$1" != -- ]; do
    mkdir -p "$root${1#*:}"
    mount --bind "${1%%:*}" "$root${1#*:}"
    shift
done
shift
cp --remove-destination "$resolv_conf" "$root/etc/resolv.conf"
cp /etc/hosts "$root/etc/hosts"
cp --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
exec chroot "$root" sh -c 'cd "/host$0" && exec "$@"' "$here" "$@"
