# The first process of a machine: machine.sh NAME TREE DISK PROGRAMS CGROUP_VERSION
# It has namespaces of its own already (machines.py).  It enters a copy of the Debian tree whose changes lie in DISK, so
# that a machine that comes back finds them, and keeps containerd, the kubelet and kube-proxy running.
set -euo pipefail
name=$1 tree=$2 disk=$3 programs=$4 cgroup_version=$5
hostname "$name"

mkdir -p "$disk/upper" "$disk/work" "$disk/root" "$disk/data/logs"
mount -t overlay overlay -o "lowerdir=$tree,upperdir=$disk/upper,workdir=$disk/work" "$disk/root"
cd "$disk/root"
mkdir -p var/lib/machine usr/local/programs var/lib/kubelet var/lib/containerd old
mount -t proc proc proc
mount -t sysfs sysfs sys
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$disk/data" var/lib/machine
mount --bind "$programs" usr/local/programs

# containerd and the kubelet need a disk that is no overlay itself.
for folder in kubelet containerd; do
    mkdir -p "$disk/data/$folder"
    mount --bind "$disk/data/$folder" "var/lib/$folder"
done

# Of the control groups a machine sees its own alone.
if [ "$cgroup_version" = 2 ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mkdir -p sys/fs/cgroup/init
    echo $$ > sys/fs/cgroup/init/cgroup.procs
    sed 's/\([a-z_]\+\)/+\1/g' sys/fs/cgroup/cgroup.controllers > sys/fs/cgroup/cgroup.subtree_control
else
    mount -t tmpfs tmpfs sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        [ -n "$controllers" ] || continue
        mkdir -p "sys/fs/cgroup/${controllers#name=}"
        mount -t cgroup -o "$controllers" cgroup "sys/fs/cgroup/${controllers#name=}"
    done < /proc/self/cgroup
fi

# The kubelet sets these for the whole kernel; a machine of ours leaves them alone.
mkdir -p run/settings
while read -r setting value; do
    echo "$value" > "run/settings/$setting"
    mount --bind "run/settings/$setting" "proc/sys/$(echo "$setting" | tr . /)"
done <<SETTINGS
vm.overcommit_memory 1
vm.panic_on_oom 0
kernel.panic 10
kernel.panic_on_oops 1
kernel.keys.root_maxkeys 1000000
kernel.keys.root_maxbytes 25000000
SETTINGS
echo 1 > proc/sys/net/ipv4/ip_forward

mount --make-rprivate /
pivot_root . old
umount -l /old
mount --make-rshared /
export PATH=/usr/local/programs:/usr/sbin:/usr/bin:/sbin:/bin
cd /
exec tini -g -- bash /var/lib/machine/config/services.sh
