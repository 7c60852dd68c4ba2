#!/usr/bin/env bash
# Makes the development CA and the leaf beside this script: `certs/make.sh`. Both are valid from 2025 to 2125, so that
# neither a test nor a clock that is off ends with them; see README.md for what they are not for.
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/index"
cat >"$work/config" <<END
[ca]
default_ca = here
[here]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[authority]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = DNS:kickstand-webhook.kickstand.svc,DNS:kickstand-webhook.kickstand.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:::1
END

request() { # key, subject
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1" -subj "$2" -out "$work/request"
}
sign() { # certificate, extensions, further arguments
  openssl ca -batch -notext -config "$work/config" -in "$work/request" -out "$1" -extensions "$2" \
    -startdate 20250101000000Z -enddate 21250101000000Z "${@:3}"
}

request ca.key "/CN=Kickstand development CA (do not trust)"
sign ca.crt authority -selfsign -keyfile ca.key
request tls.key "/CN=kickstand-webhook.kickstand.svc"
sign tls.crt leaf -cert ca.crt -keyfile ca.key
