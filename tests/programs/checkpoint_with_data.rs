//! A training with a loader, a named buffer and accumulated batches, killed at random moments until it is done.

use std::path::Path;
use std::time::Duration;

use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::batch::{Fixed, MicroBatch};
use candle_headroom::checkpoint::{Checkpoint, Checkpoints};
use candle_headroom::data::{Items, Loader};
use candle_headroom::error::BoxedError;
use candle_headroom::{AccumulatingTrainer, AdamW};
use rand::{Rng, SeedableRng};

use super::checkpoint::run::{bits_of, differing, memory_folder};
use super::checkpoint::{FOLDER, start, was_killed};

const SAMPLES: usize = 144;
const EPOCHS: u64 = 2;

struct Job {
    trainer: AccumulatingTrainer<AdamW>,
    w: Var,
    /// How often the forward pass has seen each sample; a named buffer.
    seen: Var,
    loader: Loader<Tensor>,
}

impl Job {
    fn new() -> Self {
        let w = Var::new(&[0.5f32, -0.25], &Device::Cpu).unwrap();
        let seen = Var::zeros(SAMPLES, DType::F32, &Device::Cpu).unwrap();
        let named = vec![("w", w.clone())];
        let optimizer = AdamW::builder(named).learning_rate(0.05).build().unwrap();
        // Three batches for an update, which the batches of an epoch are no multiple of.
        let builder = AccumulatingTrainer::builder(optimizer, 3).seed(11);
        let builder = builder.buffers([seen.as_tensor()]);
        let trainer = builder.policy(Fixed::new(2).unwrap()).build().unwrap();
        let collate = |numbers: Vec<f32>| -> Result<Tensor, BoxedError> {
            Ok(Tensor::new(numbers, &Device::Cpu)?)
        };
        let numbers: Vec<f32> = (0..SAMPLES).map(|number| number as f32).collect();
        let loader = Loader::builder(Items(numbers), collate).batch(4);
        let loader = loader.shuffle(3).epochs(EPOCHS).build().unwrap();
        Self {
            trainer,
            w,
            seen,
            loader,
        }
    }

    /// Trains to the end, from the last checkpoint.
    fn run(self, checkpoints: &mut Checkpoints, pause: Duration) {
        let Self {
            mut trainer,
            w,
            seen,
            loader,
        } = self;
        let loader = checkpoints.resume(&mut trainer, loader).unwrap();
        let loss = |x: Tensor, micro: &MicroBatch| {
            let mut counts = seen.to_vec1::<f32>()?;
            for number in x.to_vec1::<f32>()? {
                counts[number as usize] += 1.;
            }
            seen.set(&Tensor::new(counts, &Device::Cpu)?)?;
            let factor = (micro.seed() % 5) as f64 + 1.;
            let x = x.affine(factor / SAMPLES as f64, 0.1)?.unsqueeze(1)?;
            x.broadcast_mul(&w)?.sqr()?.mean_all()
        };
        for (index, batch) in loader.enumerate() {
            let report = trainer.step(&batch.unwrap(), loss).unwrap();
            if let Some(report) = report {
                let saving = checkpoints.after(&report, &trainer).unwrap();
                assert!(saving.is_continue());
            } else if index % 4 == 0 {
                // With batches that no update has consumed: they must come again.
                checkpoints.save_now(&trainer).unwrap();
            }
            std::thread::sleep(pause);
        }
        trainer.update().unwrap();
        checkpoints.save_now(&trainer).unwrap();
    }
}

#[test]
#[ignore = "the training of the other test"]
fn training() {
    let folder = std::env::var(FOLDER).unwrap();
    let builder = Checkpoints::builder(folder).every_updates(2).keep_last(1);
    let mut checkpoints = builder.open().unwrap();
    Job::new().run(&mut checkpoints, Duration::from_millis(1));
    checkpoints.finish().unwrap();
}

/// The training in this folder at its end.
fn ended(folder: &Path) -> Job {
    let mut job = Job::new();
    let checkpoint = Checkpoint::latest(folder).unwrap().unwrap();
    checkpoint.resume(&mut job.trainer).unwrap();
    job
}

#[test]
fn each_sample_comes_once_whenever_the_training_is_killed() {
    const KILLS: usize = 60;
    let temporary = memory_folder();
    let folder = temporary.path().join("whole");
    let mut checkpoints = Checkpoints::builder(&folder).open().unwrap();
    Job::new().run(&mut checkpoints, Duration::ZERO);
    let whole = bits_of(&ended(&folder).trainer);

    let mut random = rand::rngs::StdRng::seed_from_u64(12);
    let (mut kills, mut wrong, mut runs) = (0, 0, 0);
    while kills < KILLS {
        let temporary = memory_folder();
        let folder = temporary.path().join("run");
        for attempt in 0u64.. {
            let test = "checkpoint_with_data::training";
            let mut child = start(test, &folder, &[]);
            // Long enough for some processes to end, and short enough for most to be killed. On a slow machine it takes more.
            let life: u64 = random.random_range(5..90);
            std::thread::sleep(Duration::from_millis(life + 5 * attempt));
            child.kill().unwrap();
            let status = child.wait().unwrap();
            if !was_killed(status) {
                assert!(status.success(), "{status}");
                break;
            }
            kills += 1;
        }
        let job = ended(&folder);
        let seen = job.seen.to_vec1::<f32>().unwrap();
        assert_eq!(
            seen, [EPOCHS as f32; SAMPLES],
            "each sample once in an epoch"
        );
        wrong += differing(&bits_of(&job.trainer), &whole);
        runs += 1;
    }
    println!("figure: resume/kills_with_data = {kills} kills");
    println!("figure: resume/runs_with_data = {runs} runs");
    println!("figure: resume/bits_differing_with_data = {wrong} bits");
    assert!(runs > 0);
    assert_eq!(wrong, 0);
}
