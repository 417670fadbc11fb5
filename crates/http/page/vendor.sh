#!/bin/sh
# Downloads the libraries of the page at their pinned versions, checks their
# hashes, and writes the files that the page loads into vendor/. The browser
# resolves no bare imports, so they become relative paths. Needs curl, tar,
# openssl and sed; nothing of this runs when mainspring is built.
set -eu
cd "$(dirname "$0")"
out=vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# package NAME VERSION SHA512 (base64, as the registry publishes it)
package() {
  file=$(basename "$1")
  mkdir -p "$work/$file"
  curl -fsSL "https://registry.npmjs.org/$1/-/$file-$2.tgz" -o "$work/$file.tgz"
  sum=$(openssl dgst -sha512 -binary "$work/$file.tgz" | openssl base64 -A)
  if [ "$sum" != "$3" ]; then
    echo "vendor.sh: $1@$2 has the hash sha512-$sum, expected sha512-$3" >&2
    exit 1
  fi
  tar -xzf "$work/$file.tgz" -C "$work/$file" --strip-components=1
}

# copy PACKAGE FILE TARGET: without the source map, imports made relative
copy() {
  sed -e 's|//# sourceMappingURL=.*$||' \
    -e 's|from"preact/hooks"|from"./hooks.js"|g' \
    -e 's|from"@preact/signals-core"|from"./signals-core.js"|g' \
    -e 's|from"preact"|from"./preact.js"|g' \
    "$work/$1/$2" > "$out/$3"
}

mkdir -p "$out"
package preact 11.2.0 /HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==
package @preact/signals 2.11.4 Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==
package @preact/signals-core 1.14.5 vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==
package htm 3.1.1 983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==
package marked 18.2.0 KaeL+tAbtvI930q7HE2PN5lYXYdT8EiSmxHlN6F3rsfb57wd5mp5W5TLazpdj4inTQBJdgjYwbs40W/0VUGU+Q==

copy preact dist/preact.mjs preact.js
copy preact hooks/dist/hooks.mjs hooks.js
copy signals-core dist/signals-core.mjs signals-core.js
copy signals dist/signals.mjs signals.js
copy htm dist/htm.mjs htm.js
copy marked lib/marked.esm.js marked.js

for name in preact signals htm marked; do
  cp "$work/$name/LICENSE" "$out/LICENSE-$name.txt"
done
cp "$work/signals-core/LICENSE" "$out/LICENSE-signals-core.txt" 2>/dev/null || true
