"""The operator on Kubernetes: custom resources in, pods and statuses out.

Handlers only enqueue keys; one worker per key looks at the world as it is now, a pure plan says what is missing, and
carrying it out twice does no harm.  What etcd says decides; the API server is where people ask and are answered.

    operator    composition: one process, any number of clusters
    run         one cluster: specs into its store, nodes      specs    what of a spec is taken, and how
    showing     one cluster: what is said of it, its objects, shards and pods
    keeping     one cluster: its nodes come, go and are replaced
    lives       which nodes go, and the Reconfigurations that ask for it      losses   which are lost for good
    podkeeper   pods, claims, services that should be there; never waits, never speaks to nodes or etcd
    builders    what those objects look like
    certificates   who shall hold one, and requests     secret_store   the Secrets they are in
    etcd_secrets   what the Secrets of an etcd say
    statuses    what is written of statuses, and only when it changed
    handlers    kopf: events of our kinds            informers   lists and watches of what we own
    queue       work by key                          cache       objects as last seen
    api         requests                             health      liveness, readiness, metrics, logs
"""
