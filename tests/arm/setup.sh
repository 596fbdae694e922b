#!/bin/sh
# Makes build/arm: a Python for AArch64 Linux with what the tests need, and an emulator of the
# processor. Its programs run by build/arm/python. Nothing is installed in the system, and no root
# is needed, only apt-get and Debian's keys; all else comes from Debian's and Python's registries.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
repository=$PWD
here=$repository/build/arm
rm -rf "$here"
mkdir -p "$here/apt/lists/partial" "$here/apt/cache/archives/partial" "$here/debs" "$here/root/proc"

# Lists of packages for both processors, apart from the system's own.
host=$(dpkg --print-architecture)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm main" > "$here/apt/sources.list"
cat > "$here/apt/apt.conf" << END
Dir::Etc::sourcelist "$here/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$here/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$here/apt/cache";
APT::Architectures { "$host"; "arm64"; };
APT::Sandbox::User "root";
Debug::NoLocking "true";
END
export APT_CONFIG="$here/apt/apt.conf"
apt-get -qq update
packages=
for name in python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libstdc++6 \
    libgcc-s1 zlib1g libsqlite3-0 libffi8 libssl3 libexpat1 libbz2-1.0 liblzma5 libuuid1; do
    packages="$packages $name:arm64"
done
(cd "$here/debs" && apt-get -qq download $packages "qemu-user-static:$host")
for file in "$here"/debs/*_arm64.deb; do
    dpkg -x "$file" "$here/root"
done
dpkg --fsys-tarfile "$here"/debs/qemu-user-static_*.deb |
    tar -x -C "$here" --strip-components 3 ./usr/bin/qemu-aarch64-static

$PYTHON -m venv "$here/venv"
"$here/venv/bin/python" -m pip install --quiet --disable-pip-version-check --target "$here/site" \
    --only-binary :all: --python-version 3.11 --platform manylinux_2_28_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 numpy ml_dtypes llvmlite "pytest~=9.2" "hypothesis~=6.170"

# What the emulated processor has: what Graviton 4 has, of what matters here.
cat > "$here/root/proc/cpuinfo" << END
processor	: 0
Features	: fp asimd aes pmull sha1 sha2 crc32 atomics fphp asimdhp asimddp sve sve2 i8mm bf16
END
cat > "$here/python" << END
#!/bin/sh
# Python for AArch64, emulated.
export PYTHONHOME="$here/root/usr"
export PYTHONPATH="\${PYTHONPATH:-$repository/src:$repository}:$here/site"
exec "$here/qemu-aarch64-static" -cpu max -L "$here/root" -0 "$here/python" \\
    "$here/root/usr/bin/python3.11" "\$@"
END
chmod +x "$here/python"
rm -rf "$here/apt" "$here/debs" "$here/venv"
