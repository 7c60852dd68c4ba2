# shellcheck shell=bash
# What --help says.

help_text() {
  cat <<'TEXT'
cluster: a real Kubernetes with a real Tekton on this one machine

  API server, etcd, controller manager, scheduler, kubelet, containerd and kube-proxy, built from their pinned
  Go modules; no container engine, no registry, no port of the host taken. It lives in a network namespace and a
  cgroup of its own and in one folder, and `down` leaves none of them behind. Needs root, Linux, Go and some
  Debian packages (`cluster deps` installs those).

Start and end
  cluster up              builds what is missing (a long while the first time, never again), starts all, installs
                          Tekton; a second or two if all runs already; clears what a crash has left
  cluster up --bare       the same without Tekton
  cluster up --with istio also Istio, and the DNS it needs (--with dns: that alone); on a cluster that runs, too
  cluster down            ends it and removes its state; keeps the builds
  cluster deps            installs the Debian packages that are missing
  cluster status [-o json]

Work with it
  cluster kubectl get pods -A
  cluster load localhost/kickstand:dev      an image of buildah's local store (--storage-driver vfs)
  cluster load build/image.tar              or an OCI or docker archive; nothing is pulled in here, so
                                            load what a pod names, and leave imagePullPolicy IfNotPresent
  cluster exec COMMAND…                     runs on this machine, inside the cluster's network, KUBECONFIG set
  cluster helm …   cluster ctr …            (helm is built when it is first used)
  cluster helm-path                         the path of that helm, for what needs no cluster
  cluster tekton-flags                      Tekton's feature flags; with KEY=VALUE… sets some
  cluster istio-set KEY=VALUE…              Istio with these values of its chart on top of the cluster's own, as in
                                            env.ENABLE_NATIVE_SIDECARS=false; without any, back to those
  cluster istio-charts                      the folder of Istio's own charts (fetched when first used)
  cluster kubeconfig                        the path of the credentials; they work inside `cluster exec`

Look into it
  cluster logs                              the log files
  cluster logs [-f] [-n LINES] [--path] NAME
                                            etcd, containerd, apiserver, controller-manager, scheduler, kubelet,
                                            proxy, or audit: who changed a pod, and what each webhook did to it
  cluster versions                          what is pinned, and what is built

Settings (environment)
  KICKSTAND_CLUSTER_NAME    name of the network namespace and the cgroup               (kickstand)
  KICKSTAND_CLUSTER_DIR     its state: etcd, images, logs, credentials                 (/var/lib/NAME-cluster)
  XDG_CACHE_HOME            builds go to kickstand/cluster below it                    (~/.cache)
  KICKSTAND_APT=1           `up` installs the Debian packages it misses
  KICKSTAND_APISERVER_ARGS  more words for the API server, as in --runtime-config=api/all=true

An example, start to end
  cluster up
  cluster kubectl apply -f my-taskrun.yaml
  cluster kubectl get taskruns -w
  cluster logs audit -n 1
  cluster down
TEXT
}

# help_on COMMAND: fails for those whose own program has a --help.
help_on() {
  case $1 in
  kubectl | helm | ctr | exec) return 1 ;;
  *) help_text ;;
  esac
}
