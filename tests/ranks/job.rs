//! A training that saves itself, on any number of ranks, one of which may die.

use std::fs;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Tensor};
use candle_headroom::batch::Fixed;
use candle_headroom::checkpoint::Checkpoints;
use candle_headroom::data::{Items, Loader};
use candle_headroom::distributed::Group;
use candle_headroom::error::BoxedError;
use candle_headroom::optim::ParamsSgd;
use candle_headroom::testing::FileFaults;
use candle_headroom::{AdaptiveTrainer, Error, Sgd};
use serde::{Deserialize, Serialize};

use crate::death::{self, At, Death, Dying, Through, strike};
use crate::launch::{command, turn};
use crate::model::Model;

/// The job, in the ranks' environment.
const JOB: &str = "HEADROOM_JOB";
/// In an epoch. The last batch has 3: with 4 ranks rank 0 has none of them.
const SAMPLES: usize = 23;
const BATCH: usize = 5;
const EPOCHS: u64 = 2;
pub const UPDATES: u64 = 10;
/// Updates between checkpoints.
pub const EVERY: u64 = 2;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Holds the run's folder and its outcome.
    pub place: PathBuf,
    pub double: bool,
    /// So many parameters that their exchange takes a while.
    pub is_wide: bool,
    pub in_background: bool,
    /// Each rank keeps a part of the optimizer's state. It makes no difference to the values.
    pub is_sharded: bool,
    pub death: Option<Death>,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The update from which the last part has continued.
    pub resumed: u64,
    pub updates: u64,
    pub values: Vec<f64>,
    /// The samples of each update that the values contain.
    pub history: Vec<Vec<usize>>,
}

impl Job {
    pub fn new(place: PathBuf) -> Self {
        Self {
            place,
            double: false,
            is_wide: false,
            in_background: false,
            is_sharded: false,
            death: None,
        }
    }

    /// In a rank: the job that it was started for.
    pub fn told() -> Self {
        let told = std::env::var(JOB).expect("a job");
        serde_json::from_str(&told).expect("a job")
    }

    /// Runs this rank's part.
    pub fn run(&self) -> Result<(), Error> {
        death::expect(self.death);
        strike(At::Start);
        let group = Group::builder().timeout(Duration::from_secs(30)).open()?;
        strike(At::Joined);
        let dtype = if self.double { DType::F64 } else { DType::F32 };
        let widths: &[usize] = match self.is_wide {
            true => &[300, 3000, 3],
            false => &[4, 6, 3],
        };
        let model = Model::new(widths, dtype, 3 + group.rank() as u64); // rank 0's are copied
        let params = ParamsSgd {
            lr: 0.05,
            momentum: 0.9,
            ..ParamsSgd::default()
        };
        let mut sgd = Sgd::builder(&model.varmap).params(params);
        if self.is_sharded {
            sgd = sgd.sharded();
        }
        let trainer = AdaptiveTrainer::builder(Dying(sgd.build()?)).group(&group);
        let mut trainer = trainer.policy(Fixed::new(2)?).build()?;

        let folder = self.place.join("run");
        let _armed = match self.death.map(|death| (death.rank, death.at)) {
            Some((rank, At::File(point))) if rank == group.rank() => {
                Some(FileFaults::in_folder(&folder).at(point).killing().arm())
            }
            _ => None,
        };
        let mut checkpoints = Checkpoints::builder(&folder)
            .every_updates(EVERY)
            .keep_last(2);
        if !self.in_background {
            checkpoints = checkpoints.in_foreground();
        }
        let mut checkpoints = checkpoints.group(&group).open()?;
        strike(At::Opened);
        let loader = loader(&group, widths[0], dtype)?;
        death::arm(|at| match at {
            At::Resuming(micros) => Some(micros),
            _ => None,
        });
        let mut loader = checkpoints.resume(&mut trainer, loader)?;
        let resumed = checkpoints.resumed().cloned();
        strike(At::Resumed);
        let mut history: Vec<Vec<usize>> = checkpoints.get("history")?.unwrap_or_default();
        for batch in &mut loader {
            let batch = batch?;
            death::begin(trainer.updates() + 1);
            death::dawdle();
            let report = trainer.step(&batch, |(x, y), _| {
                strike(At::Forward);
                strike(At::Awaited);
                model.loss(&x, &y)?.apply_op1(Through)
            })?;
            strike(At::Stepped);
            history.push(group.collect(Ok(batch.indices.clone()))?);
            checkpoints.set("history", &history)?;
            death::arm(|at| match at {
                At::Saving(micros) => Some(micros),
                _ => None,
            });
            let saved = checkpoints.after(&report, &trainer)?;
            assert!(saved.is_continue());
            strike(At::Saved);
        }
        death::begin(0);
        strike(At::Ended);
        checkpoints.save_now(&trainer)?;
        strike(At::Finishing);
        checkpoints.finish()?;
        if group.rank() == 0 {
            let outcome = Outcome {
                resumed: resumed.map_or(0, |resumed| resumed.step),
                updates: trainer.updates(),
                values: model.values(),
                history,
            };
            let text = serde_json::to_string(&outcome).expect("JSON");
            fs::write(self.place.join("outcome"), text).expect("an outcome");
        }
        Ok(())
    }

    /// Runs all of it in this process.
    pub fn alone(&self) -> Outcome {
        self.run().expect("a run");
        self.outcome()
    }

    pub fn outcome(&self) -> Outcome {
        let text = fs::read_to_string(self.place.join("outcome")).expect("an outcome");
        serde_json::from_str(&text).expect("an outcome")
    }

    /// Runs it under `mpirun`, in the calling test's ranks. `None` if it hangs. Returns also what was printed.
    pub fn start(&self, ranks: usize) -> (Option<ExitStatus>, String) {
        const LONGEST: Duration = Duration::from_secs(60);
        let log = self.place.join("log");
        let file = fs::File::create(&log).expect("a file");
        let _turn = turn();
        let mut command = command(ranks, &[]);
        command.env(JOB, serde_json::to_string(self).expect("JSON"));
        command.stdout(file.try_clone().expect("a file"));
        let mut child = command
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .expect("mpirun");
        let began = Instant::now();
        let status = loop {
            match child.try_wait().expect("a child") {
                Some(status) => break Some(status),
                None if began.elapsed() < LONGEST => thread::sleep(Duration::from_millis(5)),
                None => {
                    // Its ranks end with it.
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        let text = fs::read_to_string(&log).unwrap_or_default();
        (status, text)
    }
}

type Pair = (Tensor, Tensor);

fn loader(group: &Group, width: usize, dtype: DType) -> Result<Loader<Pair>, Error> {
    let collate = move |indices: Vec<usize>| -> Result<Pair, BoxedError> {
        let make = |width: usize, phase: f64| {
            let value = |(index, place): (usize, usize)| {
                (index as f64 * 1.7 + place as f64 * 0.9 + phase).sin() * 0.5
            };
            let places = indices
                .iter()
                .flat_map(|&index| (0..width).map(move |it| (index, it)));
            let values: Vec<f64> = places.map(value).collect();
            Tensor::from_vec(values, (indices.len(), width), &Device::Cpu)?.to_dtype(dtype)
        };
        Ok((make(width, 0.)?, make(3, 0.5)?))
    };
    let loader = Loader::builder(Items((0..SAMPLES).collect::<Vec<_>>()), collate).batch(BATCH);
    let loader = loader.shuffle(9).epochs(EPOCHS);
    loader.group(group).build()
}
