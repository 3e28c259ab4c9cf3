package main

// charts is a test of the chart, a module of its own.
func charts(test string) suite { return suite{"./test/helm", "^" + test + "$"} }

const (
	chart      = "deploy/helm/outboxcdc/"
	chartPods  = chart + "templates/deployment.yaml"
	chartFiles = chart + "templates/configmap.yaml"
	chartTypes = chart + "values.schema.json"
)

// chartMutants has mutants of the chart's rules that decide whether events flow, and from which daemon.
var chartMutants = []mutant{
	wrong("chart-new-pod-beside-the-old", "A new pod can start while the old one has the slot.",
		edits{{chartPods, "type: Recreate", "type: RollingUpdate"}}, charts("TestDefaults")),
	wrong("chart-any-number-of-pods", "A value that the chart does not have is harmless, such as a number of replicas.",
		edits{{chartTypes, "\"additionalProperties\": false,\n  \"properties\": {\n    \"global\"", "\"properties\": {\n    \"global\""}}, charts("TestRefused")),
	wrong("chart-third-pod", "A third pod can wait for the slot beside the two of a standby.",
		edits{{chartPods, "maxSurge: 0", "maxSurge: 1"}}, charts("TestEverything")),
	wrong("chart-waiting-is-not-ready", "A pod that waits for the slot is not ready.",
		edits{{chartPods, "{{ if .Values.standby }}?standby=ok{{ end }}", ""}}, charts("TestEverything")),
	wrong("chart-always-ready", "A pod that streams nothing is ready.",
		edits{{chartPods, "path: /readyz", "path: /livez"}}, charts("TestDefaults")),
	wrong("chart-restarts-without-kafka", "A restart brings Kafka back.",
		edits{{chartPods, "path: /livez", "path: /readyz"}}, charts("TestDefaults")),
	wrong("chart-both-evicted", "Both pods of a standby may be evicted at a time.",
		edits{{chart + "templates/pdb.yaml", "maxUnavailable: 1", "maxUnavailable: 2"}}, charts("TestEverything")),
	wrong("chart-kills-in-the-drain", "No drain takes longer than the default.",
		edits{{chartPods, "{{ add .Values.shutdownTimeoutSeconds 15 }}", "45"}}, charts("TestDrain")),
	wrong("chart-drains-as-by-default", "The daemon need not know how long its drain may take.",
		edits{{chartPods, "\"{{ .Values.shutdownTimeoutSeconds }}s\"", "30s"}}, charts("TestDrain")),
	wrong("chart-another-drain-in-the-pod", "A variable may give the drain more time than the pod has.",
		edits{{chartTypes, "[\"OUTBOXCDC_HTTP_LISTEN\", \"OUTBOXCDC_SHUTDOWN_TIMEOUT\"]", "[\"OUTBOXCDC_HTTP_LISTEN\"]"}}, charts("TestRefused")),
	wrong("chart-probes-of-another-port", "A variable may name a port that no probe asks.",
		edits{{chartTypes, "[\"OUTBOXCDC_HTTP_LISTEN\", \"OUTBOXCDC_SHUTDOWN_TIMEOUT\"]", "[\"OUTBOXCDC_SHUTDOWN_TIMEOUT\"]"}}, charts("TestRefused")),
	wrong("chart-poison-ends-the-pod", "A poison event ends the pod, which Kubernetes then starts again and again.",
		edits{{chart + "values.yaml", "on_stop: hold", "on_stop: exit"}}, charts("TestEverything")),
	wrong("chart-changes-stay-unread", "A pod notices by itself that the settings have changed.",
		edits{{chartPods, "(toYaml .Values.config) (ternary", "\"\" (ternary"}}, charts("TestChangedSettingsReachPods")),
	wrong("chart-changed-shards-stay-unread", "A pod notices by itself that its shard has changed.",
		edits{{chartPods, "(ternary (toYaml .Values.shards) \"\" (not", "(ternary \"shards\" \"\" (not"}}, charts("TestChangedSettingsReachPods")),
	wrong("chart-secret-as-a-single-file", "A single file that is mounted follows its Secret.",
		edits{{chart + "templates/_helpers.tpl", "mountPath: {{ printf \"/run/secrets/outboxcdc/%d\" $i }}, readOnly", "mountPath: {{ printf \"/run/secrets/outboxcdc/%d/%s\" $i $s.key }}, subPath: {{ $s.key }}, readOnly"}}, charts("TestEverything")),
	wrong("chart-no-way-to-kafka", "A pod that may reach Postgres may reach Kafka.",
		edits{{chart + "templates/networkpolicy.yaml", "range list .Values.networkPolicy.postgres .Values.networkPolicy.kafka", "range list .Values.networkPolicy.postgres"}}, charts("TestEverything")),

	wrong("chart-shard-without-a-pod", "The last shard needs no pod.",
		edits{{chartPods, "replicas: {{ len .Values.shards }}", "replicas: {{ sub (len .Values.shards) 1 }}"}}, charts("TestPodsOfShards")),
	wrong("chart-name-too-long-for-pods", "A StatefulSet may have any name that a Deployment may have.",
		edits{{chartPods, "(len (include \"outboxcdc.fullname\" .)) 52", "(len (include \"outboxcdc.fullname\" .)) 63"}}, charts("TestShardsRefused")),
	wrong("chart-shards-in-turn", "The pod of a shard waits until those of the shards before it are ready.",
		edits{{chartPods, "podManagementPolicy: Parallel", "podManagementPolicy: OrderedReady"}}, charts("TestPodsOfShards")),
	wrong("chart-one-file-for-all-shards", "Every pod has the settings of the first shard.",
		edits{{chartPods, "ternary \"$(POD)\" \"outboxcdc\"", "ternary (printf \"%s-0\" (include \"outboxcdc.fullname\" .)) \"outboxcdc\""}}, charts("TestPodsOfShards")),
	wrong("chart-shared-settings-win", "What all daemons share wins over what one has.",
		edits{{chartFiles, "(deepCopy $.Values.config) $shard", "(deepCopy $shard) $.Values.config"}}, charts("TestPodsOfShards")),
	wrong("chart-settings-of-another-shard", "A shard has the settings of those before it.",
		edits{{chartFiles, "(deepCopy $.Values.config)", "$.Values.config"}}, charts("TestPodsOfShards")),
	wrong("chart-slot-of-two-shards", "Two daemons can share a slot.",
		edits{{chartPods, "list (printf \"slot %s\" .postgres.slot) (printf", "list (printf"}}, charts("TestShardsRefused")),
	wrong("chart-publication-of-two-shards", "Two daemons can deliver what is in one publication.",
		edits{{chartPods, " (printf \"publication %s\" .postgres.publication)", ""}}, charts("TestShardsRefused")),
	wrong("chart-table-of-two-shards", "Two daemons can deliver the rows of one table.",
		edits{{chartPods, "{{- $own = append $own (printf \"table %s\" (.table | replace \"\\\"\" \"\")) }}\n", ""}}, charts("TestShardsRefused")),
	wrong("chart-quoted-table", "A quoted name is that of another table.",
		edits{{chartPods, "(.table | replace \"\\\"\" \"\")", ".table"}}, charts("TestShardsRefused")),
	wrong("chart-slot-for-all-shards", "A variable may name the slot of every pod.",
		edits{{chartPods, "(list \"OUTBOXCDC_POSTGRES_SLOT\" ", "(list "}}, charts("TestShardsRefused")),
	wrong("chart-publication-for-all-shards", "A variable may name the publication of every pod.",
		edits{{chartPods, "\"OUTBOXCDC_POSTGRES_SLOT\" \"OUTBOXCDC_POSTGRES_PUBLICATION\"", "\"OUTBOXCDC_POSTGRES_SLOT\""}}, charts("TestShardsRefused")),
	wrong("chart-standby-of-shards", "The pods of shards have a standby, if one is asked for.",
		edits{{chartPods, "if and .Values.shards .Values.standby", "if false"}}, charts("TestShardsRefused")),
	wrong("chart-slot-by-default", "A shard without a slot and a publication has those of the product.",
		edits{{chartTypes, "\"required\": [\"slot\", \"publication\"]", "\"required\": []"}}, charts("TestShardsRefused")),
	wrong("chart-table-by-default", "A shard without tables delivers that of the product.",
		edits{{chartTypes, "\"required\": [\"postgres\", \"outboxes\"]", "\"required\": [\"postgres\"]"}}, charts("TestShardsRefused")),
	wrong("chart-shard-of-no-table", "A shard may have an empty list of tables.",
		edits{{chartTypes, "{\"type\": \"array\", \"minItems\": 1}", "{\"type\": \"array\"}"}}, charts("TestShardsRefused")),
}
