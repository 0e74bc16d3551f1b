# Training and validation problems.
rule prepare:
    input:
        settings="results/{study}/settings/data.json",
    output:
        train="results/{study}/data/train.jsonl",
        validation="results/{study}/data/validation.jsonl",
    log:
        "results/{study}/logs/prepare.log",
    message:
        "write the training and validation problems"
    shell:
        "exec {POLICYGRAIN} prepare --config results/{wildcards.study}/study.yaml --only training > {log:q} 2>&1"


# The problems of all benchmarks, and which of them are among the training problems.
rule benchmarks:
    input:
        settings="results/{study}/settings/benchmarks.json",
        train="results/{study}/data/train.jsonl",
    output:
        expand("results/{study}/data/benchmarks/{name}.jsonl", name=BENCHMARK_NAMES, allow_missing=True),
        contamination="results/{study}/data/contamination.json",
    log:
        "results/{study}/logs/benchmarks.log",
    message:
        "write the problems of the benchmarks"
    shell:
        "exec {POLICYGRAIN} prepare --config results/{wildcards.study}/study.yaml --only benchmarks > {log:q} 2>&1"


# A tiny or a pretrained model after supervised fine-tuning; one per seed, or `model.starts` of them, shared by all methods.
rule start_model:
    input:
        settings="results/{study}/settings/start.json",
        train="results/{study}/data/train.jsonl",
    output:
        "results/{study}/start/seed{seed}.json",
    log:
        "results/{study}/logs/start/seed{seed}.log",
    threads: STUDY.training.threads
    message:
        "make the initial model of seed {wildcards.seed}"
    shell:
        "exec {POLICYGRAIN} start-model --config results/{wildcards.study}/study.yaml --seed {wildcards.seed}"
        " > {log:q} 2>&1"
