"""The operator on Kubernetes: custom resources in, pods and statuses out.

Handlers only enqueue keys; one worker per key looks at the world as it is now, a pure plan says what is missing, and
carrying it out twice does no harm.  What etcd says decides; the API server is where people ask and are answered.

    operator        composition: one process, any number of clusters
    run             one cluster: specs into its store, nodes
    specs           what of a spec is taken, and how
    showing         one cluster: what is said of it, its objects, shards and pods
    keeping         one cluster: its nodes come, go and are replaced
    rolling         one cluster: its nodes are restarted
    lives           which nodes go, and the Reconfigurations that ask for it
    losses          which nodes are lost for good
    drains          which nodes stand on machines that are being emptied
    nodes           which nodes there are, and where
    rollout         which node is restarted next
    windows         when nodes may be restarted for reasons of our own
    podkeeper       pods, claims, services that should be there; never waits, never speaks to nodes or etcd
    builders        what those objects look like
    attachments     what stands around nodes where it is wanted
    node_config     which settings of a node a spec may name
    certificates    who shall hold one, and requests
    secret_store    the Secrets they are in
    etcd_secrets    what the Secrets of an etcd say
    finalizers      the one on log groups
    statuses        what is written of statuses, and only when it changed
    occurrences     what happened, told from two statuses
    events          telling people of it
    handlers        kopf: events of our kinds
    kopf_thread     the loop of kopf
    informers       lists and watches of what we own
    queue           work by key
    cache           objects as last seen
    budgets         so many in a second
    api             requests
    check           whether they would be answered
    health          liveness, readiness, metrics
    object_metrics  metrics of what statuses say
"""
