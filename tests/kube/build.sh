#!/usr/bin/env bash
# Builds the Kubernetes 1.20.2 control plane that the tests talk to, from Debian bookworm's source package with bookworm's Go.
# Nothing is installed on the system; what is built stays in one folder outside the checkout and is not built again.
# usage: build.sh [FOLDER]    about ten minutes on two cores, 125 MB of downloads, 4 GB of temporary disk
set -euo pipefail

cache=/var/cache
[ "$(id -u)" = 0 ] || cache=$HOME/.cache
out=${1:-${FIRSTFAULT_KUBE_BIN:-$cache/firstfault/kube-1.20.2}}
programs=(kube-apiserver kube-controller-manager kube-scheduler)

whole=yes
for program in "${programs[@]}" etcd; do [ -x "$out/$program" ] || whole=no; done
[ "$whole" = no ] || exit 0

key=/usr/share/keyrings/debian-archive-keyring.gpg
# the mirror that this machine uses already; sources are asked for in a configuration of our own
# shellcheck disable=SC2016 # these are apt's variables
mirror=$(apt-get indextargets --format '$(SITE) $(CODENAME)' | awk '$2 == "bookworm" {print $1; exit}')
[ -n "$mirror" ] || { echo "no Debian bookworm mirror is configured here" >&2; exit 1; }

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial "$work"/root "$work"/home "$work"/tree
cd "$work"
printf 'deb%s [signed-by=%s] %s bookworm main\n' '' "$key" "$mirror" -src "$key" "$mirror" >apt/sources.list
apt=(-q -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o Acquire::Languages=none
  -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update >/dev/null
apt-get "${apt[@]}" download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server \
  rsync libpopt0 jq libjq1 libonig5 make >/dev/null
for package in *.deb; do dpkg-deb -x "$package" root; done
apt-get "${apt[@]}" source --download-only kubernetes=1.20.5+really1.20.2-1.1+deb12u1 >/dev/null 2>&1
tar xzf kubernetes_*.orig.tar.gz -C tree --strip-components=1

# the reflect2 in the source breaks on Go 1.18 and newer (map iteration); Debian's package of it has the same API
vendored=tree/vendor/github.com/modern-go/reflect2
rm -rf "$vendored"
cp -r root/usr/share/gocode/src/github.com/modern-go/reflect2 "$vendored"
rm -f "$vendored/go.mod"

cat >version.sh <<'VERSION'
KUBE_GIT_COMMIT=faecb196815e248d3ecfb03c680a4507229c2a56
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=v1.20.2
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
VERSION
export KUBE_GIT_VERSION_FILE=$work/version.sh HOME=$work/home GOROOT=$work/root/usr/lib/go-1.19 CGO_ENABLED=0
export GOTOOLCHAIN=local GO111MODULE=on GOPROXY=off GOSUMDB=off GOFLAGS=
LD_LIBRARY_PATH=$work/root/usr/lib/$(uname -m)-linux-gnu
export LD_LIBRARY_PATH
export PATH=$GOROOT/bin:$work/root/usr/bin:$PATH
"$work/root/usr/bin/make" -C tree WHAT="${programs[*]/#/cmd/}" GOLDFLAGS="-s -w" >build.log 2>&1 || {
  tail -20 build.log >&2
  exit 1
}
for program in "${programs[@]}"; do install -m 755 "tree/_output/local/bin/linux/$(dpkg --print-architecture)/$program" "$out/"; done
install -m 755 root/usr/bin/etcd "$out/"
