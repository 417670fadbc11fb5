# Sourced by the scripts that test a real server from outside. They set `dir`, a temporary folder.
#
#   start_server   sets SERVER_URL, SERVER_TOKEN and MAINSPRING, the program, and `server`, its process
#   venv FILE      prints a Python environment with the packages of FILE

# Starts a server in a state directory of its own.
start_server() {
    local built binary
    # Find the binaries in cargo's target folder, wherever that is configured.
    cargo build --quiet --package mainspring-cli --bins --examples
    built=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/debug
    binary=$built/mainspring
    mkdir "$dir/agent"
    printf '[adapters.agent]\nkind = "acp"\ncommand = ["%s", "%s", "resume"]\n' \
        "$built/examples/acp_agent" "$dir/agent" >"$dir/mainspring.toml"
    export MAINSPRING_STATE_DIR=$dir/state MAINSPRING_CONFIG=$dir/mainspring.toml
    "$binary" serve --listen 127.0.0.1:0 2>"$dir/stderr.log" &
    server=$!
    SERVER_URL=$(server_url)
    SERVER_TOKEN=$("$binary" serve --print-token)
    MAINSPRING=$binary
    export MAINSPRING SERVER_URL SERVER_TOKEN PYTHONDONTWRITEBYTECODE=1
}

# Prints the address that the server listens on.
server_url() {
    local line
    for _ in {1..300}; do
        line=$(grep -o 'http://[0-9.:]*' "$dir/stderr.log" || true)
        if [[ -n $line ]]; then
            printf '%s\n' "$line"
            return
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    fail "the server did not start: $(cat "$dir/stderr.log")"
}

# Prints the folder of a Python environment, in a cache outside the tree by its packages, and makes it if needed.
venv() {
    local cache key folder
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/mainspring-test
    key=$(sha256sum "$1" | cut -c1-16)
    folder=$cache/python-$key
    if [[ ! -e $folder/made ]]; then
        rm -rf "$folder"
        mkdir -p "$cache"
        python3 -m venv "$folder" >&2
        "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$1" >&2
        touch "$folder/made"
    fi
    printf '%s\n' "$folder"
}

# Ends the server and removes the folder. For `trap stop_server EXIT`.
stop_server() {
    local status=$?
    if [[ -n ${server:-} ]]; then
        kill -9 "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    if ((status != 0)) && [[ -s $dir/stderr.log ]]; then
        printf 'standard error of the server:\n%s\n' "$(tail -n 40 "$dir/stderr.log")" >&2
    fi
    rm -rf "$dir"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}
