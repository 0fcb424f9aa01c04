#!/usr/bin/env bash
# 1. Fetch the help of LibreOffice from Debian's packages (MPL-2.0), without installing anything.
#    1_fetch.sh WORK SOURCE TARGET
set -euo pipefail
work=$1; shift
mkdir -p "$work/packages" "$work/root"
cd "$work/packages"
for language in "$@"; do
    [ "$language" = en ] && language=en-us
    ls libreoffice-help-"$language"_*.deb > /dev/null 2>&1 || apt-get download "libreoffice-help-$language"
    for package in libreoffice-help-"$language"_*.deb; do dpkg-deb -x "$package" ../root; done
done
