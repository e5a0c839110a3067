//! What runs leave: state, checkpoints, traces, logs and what a policy has learned.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{BatchPolicy, Completed, Extent, Failed, Halving, MemoryModel};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints, load_model};
use candle_headroom::error::{Cause, MemoryReading, Phase, Resource};
use candle_headroom::incident::{Incident, IncidentLog, Incidents};
use candle_headroom::optim::{Commit, Shard, StateDict};
use candle_headroom::testing::Faults;
use candle_headroom::timeline::SavedTrace;
use candle_headroom::{
    AdamW, AdaptiveTrainer, Error, Predictive, ResourceExhausted, StepReport, Timeline,
};
use serde_json::{Value, json};

use super::data::{parts, with_json};
use super::{attack, is_told};
use crate::support::alone;

const CASES: u32 = 300;

/// A trainer of two parameters, and what it does in a step.
struct Run {
    trainer: AdaptiveTrainer<AdamW>,
    vars: Vec<(&'static str, Var)>,
}

impl Run {
    fn new() -> Self {
        let var = |len: usize| Var::ones(len, DType::F32, &Device::Cpu).unwrap();
        let vars = vec![("a.weight", var(3)), ("b", var(3))];
        let optimizer = AdamW::builder(vars.clone()).clip_norm(1.).build().unwrap();
        let trainer = AdaptiveTrainer::builder(optimizer).build().unwrap();
        Self { trainer, vars }
    }

    fn step(&mut self) -> Result<StepReport, Error> {
        let x = Tensor::ones((4, 3), DType::F32, &Device::Cpu).unwrap();
        let [(_, a), (_, b)] = self.vars.as_slice() else {
            panic!("two parameters")
        };
        let loss = |x: Tensor, _: &_| x.broadcast_mul(a)?.broadcast_add(b)?.sqr()?.mean_all();
        self.trainer.step(&x, loss)
    }

    /// One that has made two steps.
    fn trained() -> Self {
        let mut run = Self::new();
        for _ in 0..2 {
            run.step().unwrap();
        }
        run
    }

    /// Parameters and state.
    fn all(&self) -> String {
        let values = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>();
        let vars = self.vars.iter().map(|(_, var)| values(var).unwrap());
        let state = self.trainer.state().unwrap();
        let tensors = state.tensors.iter();
        let tensors = tensors.map(|(name, tensor)| {
            let tensor = tensor.to_dtype(DType::F32).unwrap();
            (name, values(&tensor).unwrap())
        });
        format!(
            "{:?} {:?} {:?}",
            vars.collect::<Vec<_>>(),
            tensors.collect::<Vec<_>>(),
            state.metadata
        )
    }

    /// Does something that may be refused, which changes nothing then. What was taken can be gone on from. Returns whether it was taken.
    fn try_to(work: impl FnOnce(&mut Self) -> Result<(), Error>) -> bool {
        let mut run = Self::new();
        let before = run.all();
        match work(&mut run) {
            Ok(()) => {
                if let Err(error) = run.step() {
                    is_told(error);
                }
                true
            }
            Err(error) => {
                is_told(error);
                assert_eq!(run.all(), before);
                false
            }
        }
    }

    fn load(state: &StateDict) -> bool {
        Self::try_to(|run| run.trainer.load_state(state))
    }
}

#[test]
fn state_dicts() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.safetensors");
    let state = Run::trained().trainer.state().unwrap();
    state.save(&path).unwrap();
    let valid = fs::read(&path).unwrap();
    let read = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        match StateDict::load(&path) {
            Ok(state) => {
                if let Err(error) = StateDict::merge(vec![state.clone(), state.clone()]) {
                    is_told(error);
                }
                Run::load(&state)
            }
            Err(error) => {
                is_told(error);
                false
            }
        }
    };
    attack("a state dict", CASES, &valid, read);
    let (json, data) = parts(&valid);
    attack("header of a state dict", CASES, &json, |json| {
        read(&with_json(json, &data))
    });
    for (name, text) in &state.metadata {
        attack(name, CASES, text.as_bytes(), |text| {
            let mut state = state.clone();
            let text = String::from_utf8_lossy(text).into_owned();
            state.metadata.insert(name.clone(), text);
            Run::load(&state)
        });
    }
}

/// Parts of an optimizer's state, as ranks save them.
#[test]
fn pieces_of_state() {
    let _alone = alone();
    let state = |start: usize| {
        let tensor = Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
        let mut state = StateDict::default();
        state.tensors.insert("w.exp_avg".to_owned(), tensor);
        let step = Tensor::new(1f32, &Device::Cpu).unwrap();
        state.tensors.insert("w.step".to_owned(), step);
        let pieces =
            json!({"w": {"shape": [2, 2], "ranges": [[start, start + 2]], "kept": ["exp_avg"]}});
        (state, pieces.to_string())
    };
    let (first, text) = state(0);
    let (mut second, other) = state(2);
    second.metadata.insert("pieces".to_owned(), other);
    attack("pieces", CASES, text.as_bytes(), |text| {
        let mut first = first.clone();
        let text = String::from_utf8_lossy(text).into_owned();
        first.metadata.insert("pieces".to_owned(), text);
        match StateDict::merge(vec![first, second.clone()]) {
            Ok(_) => true,
            Err(error) => {
                is_told(error);
                false
            }
        }
    });
}

/// A parameter of which no rank has an element, and as many as a text says.
#[test]
fn pieces_without_elements_take_no_memory() {
    let _alone = alone();
    for shape in [json!([1u64 << 40, 1 << 20]), json!([usize::MAX, 2])] {
        let pieces = json!({"w": {"shape": shape, "ranges": [], "kept": ["exp_avg"]}});
        let mut state = StateDict::default();
        state
            .metadata
            .insert("pieces".to_owned(), pieces.to_string());
        match StateDict::merge(vec![state.clone(), state]) {
            Ok(merged) => assert!(!Run::load(&merged)),
            Err(error) => is_told(error),
        }
    }
}

/// Gives a manifest the checksum of its own text, as far as it has a place for one.
fn sealed(manifest: &[u8]) -> Vec<u8> {
    const FIELD: &[u8] = b"\"crc32\": \"";
    let mut places = manifest.windows(FIELD.len());
    let place = places.rposition(|bytes| bytes == FIELD);
    let place = place.and_then(|at| manifest.split_at_checked(at + FIELD.len()));
    let Some((head, [_, _, _, _, _, _, _, _, tail @ ..])) = place else {
        return manifest.to_vec();
    };
    let crc32 = format!("{:08x}", crc32fast::hash(&[head, tail].concat()));
    [head, crc32.as_bytes(), tail].concat()
}

/// Replaces a file of a checkpoint, and what its manifest says of it.
fn replace(checkpoint: &Path, name: &str, content: &[u8]) {
    let path = checkpoint.join(name);
    let before = fs::read(&path).unwrap();
    fs::write(&path, content).unwrap();
    let told = |content: &[u8]| {
        let crc32 = crc32fast::hash(content);
        format!(
            "\"{name}\": {{\n      \"bytes\": {},\n      \"crc32\": \"{crc32:08x}\"",
            content.len()
        )
    };
    let manifest = checkpoint.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    assert!(text.contains(&told(&before)), "{text}");
    let text = text.replace(&told(&before), &told(content));
    fs::write(manifest, sealed(text.as_bytes())).unwrap();
}

#[test]
fn checkpoints() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let run = Run::trained();
    let mut checkpoints = Checkpoints::builder(temporary.path()).open().unwrap();
    checkpoints.set("notes", &json!({"at": [1, 2.5]})).unwrap();
    let folder = checkpoints.save_now(&run.trainer).unwrap();
    checkpoints.finish().unwrap();
    let read = || {
        // Two ways to read the same.
        let model = Run::new();
        let into_model = load_model(&folder).into_parameters(model.vars.clone());
        let opened = match Checkpoint::open(&folder) {
            Ok(opened) => opened,
            Err(error) => {
                is_told(error);
                assert!(into_model.is_err());
                return false;
            }
        };
        for error in [
            opened.get::<Vec<String>>("notes").err(),
            opened.get::<Value>("notes").err(),
            opened.state().err(),
            into_model.err(),
        ] {
            error.into_iter().for_each(is_told);
        }
        Run::try_to(|run| opened.resume(&mut run.trainer))
    };
    let manifest = folder.join("manifest.json");
    let valid = fs::read(&manifest).unwrap();
    attack("a manifest", CASES, &valid, |content| {
        fs::write(&manifest, content).unwrap();
        read()
    });
    attack("a manifest with its checksum", CASES, &valid, |content| {
        fs::write(&manifest, sealed(content)).unwrap();
        read()
    });
    fs::write(&manifest, &valid).unwrap();
    for name in ["state.json", "model.safetensors", "optimizer.safetensors"] {
        let valid = fs::read(folder.join(name)).unwrap();
        attack(name, CASES, &valid, |content| {
            replace(&folder, name, content);
            read()
        });
        replace(&folder, name, &valid);
        if name != "state.json" {
            let (json, data) = parts(&valid);
            attack(&format!("header of {name}"), CASES, &json, |json| {
                replace(&folder, name, &with_json(json, &data));
                read()
            });
            replace(&folder, name, &valid);
        }
    }
}

/// A checkpoint of two ranks that divide the optimizer's state.
#[test]
fn parts_of_checkpoints() {
    let _alone = alone();
    let temporary = tempfile::tempdir().unwrap();
    let run = Run::trained();
    let mut checkpoints = Checkpoints::builder(temporary.path()).open().unwrap();
    let folder = checkpoints.save_now(&run.trainer).unwrap();
    checkpoints.finish().unwrap();
    let state = Checkpoint::open(&folder).unwrap().state().unwrap();
    let names = [0, 1].map(|rank| format!("optimizer-rank-{rank:05}-of-00002.safetensors"));
    for (name, own) in names.iter().zip([0..2, 2..3]) {
        let optimizer = AdamW::builder(run.vars.clone()).clip_norm(1.).sharded();
        let mut optimizer = optimizer.build().unwrap();
        let mut shard = Shard::of(optimizer.parameters());
        run.vars
            .iter()
            .for_each(|(_, var)| shard.own(var, own.clone()));
        optimizer.shard(&shard, Some(&state)).unwrap();
        let part = optimizer.state().unwrap();
        part.save(folder.join(name)).unwrap();
    }
    let entry = |name: &str| {
        let content = fs::read(folder.join(name)).unwrap();
        let (bytes, crc32) = (content.len(), crc32fast::hash(&content));
        let values = format!("\n      \"bytes\": {bytes},\n      \"crc32\": \"{crc32:08x}\"\n    ");
        format!("\"{name}\": {{{values}}}")
    };
    let manifest = folder.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let entries = names.each_ref().map(|name| entry(name)).join(",\n    ");
    let parted = text.replace(&entry("optimizer.safetensors"), &entries);
    assert_ne!(parted, text);
    fs::write(&manifest, sealed(parted.as_bytes())).unwrap();

    let read = || match Checkpoint::open(&folder) {
        Ok(opened) => Run::try_to(|run| opened.resume(&mut run.trainer)),
        Err(error) => {
            is_told(error);
            false
        }
    };
    let tensors = |state: StateDict| {
        let values = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let tensors = state.tensors.iter();
        let tensors = tensors.map(|(name, tensor)| (name.clone(), values(tensor).unwrap()));
        tensors.collect::<Vec<_>>()
    };
    let opened = Checkpoint::open(&folder).unwrap();
    assert_eq!(tensors(opened.state().unwrap()), tensors(state));
    // The first backtrace reads this program's symbols.
    let short = Tensor::zeros(2, DType::F32, &Device::Cpu).unwrap();
    is_told(short.narrow(0, 0, 9).unwrap_err());
    for name in &names {
        let valid = fs::read(folder.join(name)).unwrap();
        attack("a rank's part", CASES, &valid, |content| {
            replace(&folder, name, content);
            read()
        });
        let (json, data) = parts(&valid);
        attack("header of a rank's part", CASES, &json, |json| {
            replace(&folder, name, &with_json(json, &data));
            read()
        });
        replace(&folder, name, &valid);
    }
}

#[test]
fn model_folders() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    let run = Run::trained();
    for (file, (name, var)) in ["1.safetensors", "2.safetensors"].iter().zip(&run.vars) {
        let tensors = std::collections::HashMap::from([(*name, var.as_tensor().clone())]);
        candle_core::safetensors::save(&tensors, folder.path().join(file)).unwrap();
    }
    let load = || {
        Run::try_to(|run| {
            let loading = load_model(folder.path()).rename("old.*", "a.*");
            loading.into_parameters(run.vars.clone())
        })
    };
    let valid = json!({"metadata": {"total_size": 24}, "weight_map": {"a.weight": "1.safetensors", "b": "2.safetensors"}});
    attack("an index", CASES, valid.to_string().as_bytes(), |content| {
        fs::write(&index, content).unwrap();
        load()
    });
    fs::write(&index, valid.to_string()).unwrap();
    let part = folder.path().join("1.safetensors");
    let (json, data) = parts(&fs::read(&part).unwrap());
    attack("header of a model", CASES, &json, |json| {
        fs::write(&part, with_json(json, &data)).unwrap();
        load()
    });
}

/// Steps in which memory runs out, in view of a timeline and a log.
fn watched(timeline: &Timeline, log: &IncidentLog) {
    let var = Var::ones(3, DType::F32, &Device::Cpu).unwrap();
    let optimizer = AdamW::builder(vec![var.clone()]).build().unwrap();
    let policy = Halving::builder().start(4).build().unwrap();
    let builder = AdaptiveTrainer::builder(optimizer).policy(policy);
    let builder = builder.observer(timeline.clone()).observer(log.clone());
    let mut trainer = builder.build().unwrap();
    let x = Tensor::ones((8, 3), DType::F32, &Device::Cpu).unwrap();
    for _ in 0..3 {
        let armed = Faults::in_phase(Phase::Backward, 0).times(2).arm();
        let report = trainer.step(&x, |x, _| x.broadcast_mul(&var)?.sqr()?.mean_all());
        drop((report, armed));
        timeline.number("loss", 0.5);
        timeline.note("noted");
    }
}

#[test]
fn traces_and_logs() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let [trace, lines] = ["run.json", "run.jsonl"].map(|name| folder.path().join(name));
    let timeline = Timeline::new();
    let log = IncidentLog::builder(&lines).open().unwrap();
    watched(&timeline, &log);
    drop(log);
    timeline.save_trace(&trace).unwrap();
    let valid = fs::read(&trace).unwrap();
    attack("a trace", CASES, &valid, |content| {
        fs::write(&trace, content).unwrap();
        match SavedTrace::read(&trace) {
            Ok(saved) => {
                let mut page = Vec::new();
                saved.write_page("a page", &mut page).unwrap();
                !page.is_empty()
            }
            Err(error) => {
                is_told(error);
                false
            }
        }
    });
    let valid = fs::read(&lines).unwrap();
    assert!(Incidents::read(&lines).unwrap().list.len() > 3);
    attack("a log of incidents", CASES, &valid, |content| {
        fs::write(&lines, content).unwrap();
        let incidents = Incidents::read(&lines).unwrap();
        let text = format!("{} {incidents:?}", incidents.summary());
        let mut taken = incidents.list.iter().map(Incident::taken);
        taken.all(|taken| taken >= UNIX_EPOCH) && !text.is_empty()
    });
}

/// A batch by a policy that has loaded some state.
fn use_policy(policy: &mut dyn BatchPolicy) {
    for (samples, cost, in_use) in [(8, 800, 0), (5, 1 << 40, u64::MAX), (3, 3, 1000)] {
        policy.begin(&Extent::new(samples, cost));
        let mut now = MemoryReading::default();
        (now.in_use, now.limit) = (Some(in_use), Some(1 << 30));
        policy.prepare(&now);
        for _ in 0..4 {
            let size = policy.size(samples).clamp(1, samples);
            let mut completed = Completed::new(size);
            (completed.before, completed.limit) = (Some(in_use), Some(1 << 30));
            completed.peak = Some(in_use.saturating_add(1 << 20));
            policy.succeeded(&completed);
            let mut exhausted = ResourceExhausted::new(Resource::HostMemory, Cause::Limit);
            exhausted.bytes = now;
            policy.failed(&Failed::new(size, &exhausted));
            assert!(
                policy
                    .plan()
                    .is_some_and(|plan| !plan.to_string().is_empty())
            );
        }
    }
    assert!(policy.state().is_some());
}

#[test]
fn what_a_policy_has_learned() {
    let _alone = alone();
    let mut learned = Predictive::default();
    for _ in 0..2 {
        use_policy(&mut learned);
    }
    let state = learned.state().unwrap();
    attack("a policy's state", 2 * CASES, state.as_bytes(), |content| {
        let mut policy = Predictive::default();
        match policy.load_state(&String::from_utf8_lossy(content)) {
            Ok(()) => {
                use_policy(&mut policy);
                true
            }
            Err(error) => {
                is_told(error);
                false
            }
        }
    });
    let model = serde_json::to_vec(learned.model()).unwrap();
    attack("a model of memory", 2 * CASES, &model, |content| {
        let Ok(mut model) = serde_json::from_slice::<MemoryModel>(content) else {
            return false;
        };
        for cost in [1, 100, usize::MAX] {
            assert!(model.predict(cost) <= model.upper_bound(cost));
            model.largest_fitting(cost as u64);
            model.observe(cost, 1 << 20);
        }
        true
    });
}
