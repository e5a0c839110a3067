//! A step with another rank, against the same step alone plus MPI's bare sum of as many bytes.

use anyhow::Result;
use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;

use crate::ranks::Ranks;
use crate::support::transformer::Config;
use crate::support::{alternate, median};
use crate::training::{SMALL, Training};

/// Elements that the crate's engine sums in one call.
const BUCKET: usize = 1 << 20;

/// A name, a model, the texts of each rank's batch, and rounds: quick ones, and all.
type Size = (&'static str, Config, usize, [usize; 2]);

const SIZES: [Size; 3] = [
    ("100k", SMALL, 16, [61, 401]),
    (
        "1m",
        Config {
            width: 128,
            layers: 5,
            ..SMALL
        },
        8,
        [21, 151],
    ),
    (
        "10m",
        Config {
            width: 384,
            layers: 6,
            ..SMALL
        },
        4,
        [7, 51],
    ),
];

pub fn compare(ranks: &Ranks, is_quick: bool) -> Result<()> {
    let mut worst = 0.;
    for size in SIZES {
        let ratio = steps(ranks, size, is_quick)?;
        let name = format!("step_vs_compute_plus_all_reduce_{}", size.0);
        ranks.figure(&name, ratio, "x");
        worst = ratio.max(worst);
    }
    ranks.figure("step_vs_compute_plus_all_reduce", worst, "x");
    Ok(())
}

fn steps(ranks: &Ranks, (_, config, texts, rounds): Size, is_quick: bool) -> Result<f64> {
    let mut together = Training::new(config, texts, |builder| builder.group(&ranks.group))?;
    let mut alone = Training::new(config, texts, |builder| builder)?;
    let parameters = together.parameters();
    let (mut waited, mut reduced) = (Vec::new(), Vec::new());
    let mut whole = Buffers::new(parameters, ranks);
    let mut cut = Buffers::new(parameters, ranks);
    let contenders = vec![
        ranks.together("step with another rank", || {
            let report = together.step();
            let exchange = report.exchange.expect("the ranks' exchange");
            waited.push(exchange.waited.as_secs_f64());
            reduced.push(exchange.reduced.as_secs_f64());
        }),
        ranks.together("step alone", || {
            alone.step();
        }),
        ranks.together("MPI: all-reduce", || whole.all_reduce(&ranks.world)),
        ranks.together("MPI: in buckets", || cut.all_reduce_cut(&ranks.world)),
    ];
    let rounds = alternate(contenders, rounds[usize::from(!is_quick)]);
    if ranks.is_first() {
        rounds.print(
            &format!("{parameters} parameters, {texts} texts on each of 2 ranks"),
            1,
        );
        let (waited, reduced) = (median(waited) * 1e3, median(reduced) * 1e3);
        println!("  of it on rank 0: waited {waited:.2} ms, reduced {reduced:.2} ms");
    }
    // Of medians, because in a round's sum one slow all-reduce would hide what the step costs.
    let bare = rounds.median("step alone") + rounds.median("MPI: all-reduce");
    Ok(rounds.median("step with another rank") / bare)
}

/// What MPI sums.
struct Buffers {
    own: Vec<f32>,
    sum: Vec<f32>,
    piece: Vec<f32>,
}

impl Buffers {
    fn new(len: usize, ranks: &Ranks) -> Self {
        let size = ranks.group.size();
        let len = len.next_multiple_of(size);
        Self {
            own: (0..len).map(|at| at as f32 * 1e-6).collect(),
            sum: vec![0.; len],
            piece: vec![0.; len.min(BUCKET) / size],
        }
    }

    fn all_reduce(&mut self, world: &SimpleCommunicator) {
        world.all_reduce_into(
            self.own.as_slice(),
            self.sum.as_mut_slice(),
            SystemOperation::sum(),
        );
    }

    /// The same in two calls for each bucket.
    fn all_reduce_cut(&mut self, world: &SimpleCommunicator) {
        let all = self.own.len();
        let buckets = self.own.chunks(BUCKET).zip(self.sum.chunks_mut(BUCKET));
        for (own, sum) in buckets {
            let len = own.len() * self.piece.len() / all.min(BUCKET);
            let piece = &mut self.piece[..len];
            world.reduce_scatter_block_into(own, piece, SystemOperation::sum());
            world.all_gather_into(&*piece, sum);
        }
    }
}
