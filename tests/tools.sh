#!/usr/bin/env bash
# Brings the outside clients that tests use, kcat and redis-cli, where the PATH lacks them: Debian's packages,
# installed for root, else unpacked in .cache/tools, where tests look too. What cannot be had is said and is
# no failure: the tests that need it are skipped then, or fail under continuous integration.
set -uo pipefail
cd "$(dirname "$0")/.."
TOOLS=.cache/tools
export DEBIAN_FRONTEND=noninteractive

missing=()
for tool in kcat:kcat redis-cli:redis-tools; do
  command -v "${tool%%:*}" > /dev/null || [ -x "$TOOLS/bin/${tool%%:*}" ] || missing+=("$tool")
done
[ ${#missing[@]} -eq 0 ] && exit 0

give_up() {
  echo "tests/tools.sh: ${missing[*]%%:*} cannot be had ($1); the tests that need them are skipped" >&2
  exit 0
}

install_packages() {
  apt-get install --quiet --yes --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"
}

# The packages and those that they need and the system lacks, as files in the current folder.
download_packages() {
  local wanted
  wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances "$@" | grep '^[a-z0-9]' | grep -v ':' | sort -u)
  for package in $wanted; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed \
      || apt-get download --quiet "$package" || return 1
  done
}

unpack_packages() {
  local root
  mkdir -p "$TOOLS/packages" "$TOOLS/bin" && root=$(realpath "$TOOLS")
  (cd "$TOOLS/packages" && download_packages "$@") || return 1
  for package in "$TOOLS"/packages/*.deb; do
    dpkg -x "$package" "$TOOLS/root" || return 1
  done
  for tool in "${missing[@]}"; do
    cat > "$TOOLS/bin/${tool%%:*}" << SCRIPT
#!/bin/sh
LD_LIBRARY_PATH="$root/root/usr/lib/$(uname -m)-linux-gnu:$root/root/lib/$(uname -m)-linux-gnu" \\
  exec "$root/root/usr/bin/${tool%%:*}" "\$@"
SCRIPT
    chmod +x "$TOOLS/bin/${tool%%:*}"
  done
}

command -v apt-get > /dev/null || give_up "there is no apt-get; install them yourself"
packages=("${missing[@]##*:}")
if [ "$(id -u)" = 0 ]; then
  install_packages "${packages[@]}" > /dev/null 2>&1 \
    || { apt-get update --quiet > /dev/null 2>&1; install_packages "${packages[@]}" > /dev/null; } \
    || give_up "apt-get could not install ${packages[*]}"
else
  unpack_packages "${packages[@]}" > /dev/null || give_up "apt-get could not download ${packages[*]}"
fi
