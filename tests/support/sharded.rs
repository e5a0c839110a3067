//! An optimizer beside several ranks of it that share its work, all in one process: what they copy to each other is copied here.

use std::ops::Range;

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    Algorithm, Commit, Committed, Fused, FusedBuilder, Group, Shard, StateDict,
};

use crate::support::{flat, wave};

/// The elements that a rank owns: parameters by their places.
pub type Pieces = Vec<(usize, Range<usize>)>;

/// The smallest with moments of 8 bits, one that does not end with a block of them, small ones, one with fewer than they are for, and one
/// with a single element.
pub const SHAPES: [&[usize]; 6] = [&[64, 64], &[5, 7], &[99, 51], &[3], &[1101], &[]];

pub fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Cuts as ZeRO does: all parameters one behind the other, each beginning at a multiple of `unit`, in buckets of `share` elements for
/// each rank. Without `unit` 256 the cuts are in odd places.
pub fn cut(shapes: &[&[usize]], ranks: usize, share: usize, unit: usize) -> Vec<Pieces> {
    let mut pieces = vec![Vec::new(); ranks];
    let mut start = 0;
    for (index, shape) in shapes.iter().enumerate() {
        let (len, mut at) = (elements(shape), 0);
        while at < len {
            let place = start + at;
            let count = (share - place % share).min(len - at);
            pieces[place / share % ranks].push((index, at..at + count));
            at += count;
        }
        start = (start + len).next_multiple_of(unit);
    }
    pieces
}

/// An optimizer with its own parameters, in three groups with different options. It has the `index`th parameter in group `index % 3`.
pub struct One<A> {
    pub vars: Vec<Var>,
    pub optimizer: Fused<A>,
}

pub type Options<'a, A> = &'a dyn Fn(FusedBuilder<A>) -> FusedBuilder<A>;

impl<A: Algorithm> One<A> {
    pub fn new(
        device: &Device,
        shapes: &[&[usize]],
        dtype: DType,
        params: &A,
        options: Options<'_, A>,
    ) -> Self {
        let vars = shapes.iter().enumerate().map(|(index, shape)| {
            let values = wave(elements(shape), index, dtype).unwrap();
            let values = values.reshape(*shape).unwrap().to_device(device).unwrap();
            Var::from_tensor(&values).unwrap()
        });
        let vars: Vec<_> = vars.collect();
        let group = |group: usize| {
            let named = vars.iter().enumerate().skip(group).step_by(3);
            let named = named.map(|(index, var)| (format!("p{index}"), var.clone()));
            Group::from(Vec::from_iter(named))
        };
        let builder = Fused::builder(group(0))
            .params(params.clone())
            .group(group(1).learning_rate_factor(0.5).weight_decay(0.2))
            .group(group(2));
        let optimizer = options(builder).build().unwrap();
        Self { vars, optimizer }
    }

    pub fn shard(&self, pieces: &Pieces) -> Shard {
        let mut shard = Shard::default();
        self.vars.iter().for_each(|var| shard.own(var, 0..0));
        for (index, range) in pieces {
            shard.own(&self.vars[*index], range.clone());
        }
        shard
    }

    pub fn bits(&self) -> Vec<Vec<u64>> {
        let bits = |var: &Var| flat(var).into_iter().map(f64::to_bits).collect();
        self.vars.iter().map(bits).collect()
    }

    pub fn set_frozen(&mut self, group: usize, frozen: bool) {
        let options = self.optimizer.groups()[group].frozen(frozen);
        self.optimizer.set_group(group, options).unwrap();
    }

    fn scale(&self) {
        let one = Tensor::ones((), DType::F32, self.vars[0].device()).unwrap();
        self.optimizer.scale_loss(&one).unwrap();
    }

    /// The gradients with these values, f32 in every second step; the first parameter's is transposed in memory.
    fn gradients(&self, values: &[Vec<f64>], step: usize) -> GradStore {
        let mut store = GradStore::default();
        for (index, (var, values)) in self.vars.iter().zip(values).enumerate() {
            let is_f32 = var.dtype().size_in_bytes() == 2 && step.is_multiple_of(2);
            let dtype = if is_f32 { DType::F32 } else { var.dtype() };
            let gradient = Tensor::from_slice(values, var.dims(), &Device::Cpu).unwrap();
            let gradient = gradient.to_dtype(dtype).unwrap();
            let is_transposed = index == 0 && var.rank() == 2;
            let gradient = match is_transposed {
                true => gradient.t().unwrap().contiguous().unwrap(),
                false => gradient,
            };
            let gradient = gradient.to_device(var.device()).unwrap();
            let gradient = match is_transposed {
                true => gradient.t().unwrap(),
                false => gradient,
            };
            store.insert(var, gradient);
        }
        store
    }
}

/// One optimizer of whole parameters, and the ranks that do the same together.
pub struct Ranks<A> {
    pub whole: One<A>,
    pub ranks: Vec<One<A>>,
    pub pieces: Vec<Pieces>,
}

impl<A: Algorithm> Ranks<A> {
    pub fn new(
        device: &Device,
        shapes: &[&[usize]],
        dtype: DType,
        pieces: Vec<Pieces>,
        params: &A,
        options: Options<'_, A>,
    ) -> Self {
        let new = |options| One::new(device, shapes, dtype, params, options);
        let sharded = |builder: FusedBuilder<A>| options(builder).sharded();
        let whole = new(options);
        let ranks = pieces.iter().map(|pieces| {
            let mut rank = new(&sharded);
            let shard = rank.shard(pieces);
            rank.optimizer.shard(&shard, None).unwrap();
            rank
        });
        Self {
            whole,
            ranks: ranks.collect(),
            pieces,
        }
    }

    /// Steps with gradients of their own. `spoil` changes the values of a parameter's gradient.
    pub fn run(&mut self, steps: Range<usize>, spoil: &dyn Fn(usize, usize, &mut Vec<f64>)) {
        for step in steps {
            let vars = self.whole.vars.iter().enumerate();
            let values = vars.map(|(index, var)| {
                let gradient = wave(var.elem_count(), 100 + 31 * step + index, DType::F32);
                let mut values = flat(&gradient.unwrap());
                spoil(step, index, &mut values);
                values
            });
            self.step(step, &values.collect::<Vec<_>>());
        }
    }

    /// An update by the whole and by all ranks, after which they have the same bits.
    fn step(&mut self, step: usize, values: &[Vec<f64>]) {
        let before = self.whole.bits();
        let gradients = self.whole.gradients(values, step);
        // What a rank does not own is not a number: whoever reads it shows it.
        let known = |pieces: &Pieces| {
            let mut known: Vec<_> = values.iter().map(|v| vec![f64::NAN; v.len()]).collect();
            for (index, range) in pieces {
                known[*index][range.clone()].copy_from_slice(&values[*index][range.clone()]);
            }
            known
        };
        let mut measures = Vec::new();
        let mut stores = Vec::new();
        for (rank, pieces) in self.ranks.iter_mut().zip(&self.pieces) {
            let store = rank.gradients(&known(pieces), step);
            let measure = rank.optimizer.measure(&store, &rank.shard(pieces)).unwrap();
            let shard = self.whole.shard(pieces);
            let same = self.whole.optimizer.measure(&gradients, &shard).unwrap();
            let bits = |measure: Option<f64>| measure.map(f64::to_bits);
            assert_eq!(bits(measure), bits(same), "step {step}");
            measures.extend(measure);
            stores.push(store);
        }
        let is_measured = !measures.is_empty();
        let sum: f64 = measures.into_iter().sum();
        let commit = |one: &mut One<A>, store: &GradStore| {
            one.scale();
            match is_measured {
                true => one.optimizer.commit_measured(store, sum),
                false => one.optimizer.commit(store),
            }
            .unwrap()
        };
        let committed = commit(&mut self.whole, &gradients);
        // The host knows what becomes of an update, on CUDA too.
        let expected = match sum.is_finite() {
            true => Committed::Applied,
            false => Committed::Skipped,
        };
        assert_eq!(committed, expected);
        for ((rank, store), pieces) in self.ranks.iter_mut().zip(&stores).zip(&self.pieces) {
            assert_eq!(commit(rank, store), committed);
            let after = rank.bits();
            let mut untouched = before.clone();
            for (index, range) in pieces {
                untouched[*index][range.clone()].copy_from_slice(&after[*index][range.clone()]);
            }
            assert!(
                after == untouched,
                "step {step}: what others own has changed"
            );
        }
        self.all_gather();
        let expected = (self.whole.bits(), self.told(&self.whole));
        for (index, rank) in self.ranks.iter().enumerate() {
            assert!(rank.bits() == expected.0, "step {step}, rank {index}");
            assert_eq!(self.told(rank), expected.1, "step {step}, rank {index}");
        }
    }

    fn told(&self, one: &One<A>) -> String {
        format!("{:?}", one.optimizer.progress().unwrap())
    }

    /// Copies each rank's pieces to all.
    fn all_gather(&self) {
        let mut all: Vec<_> = self.ranks[0].vars.iter().map(|var| flat(var)).collect();
        for (rank, pieces) in self.ranks.iter().zip(&self.pieces) {
            for (index, range) in pieces {
                let here = flat(&rank.vars[*index]);
                all[*index][range.clone()].copy_from_slice(&here[range.clone()]);
            }
        }
        for rank in &self.ranks {
            for (var, values) in rank.vars.iter().zip(&all) {
                let values = Tensor::from_slice(values, var.dims(), &Device::Cpu).unwrap();
                let values = values.to_dtype(var.dtype()).unwrap();
                var.set(&values.to_device(var.device()).unwrap()).unwrap();
            }
        }
    }

    pub fn merged(&self) -> StateDict {
        let states = self.ranks.iter();
        let states = states.map(|rank| rank.optimizer.state().unwrap());
        StateDict::merge(states.collect()).unwrap()
    }
}

/// The names, types, shapes and bits of all tensors, and the documents.
pub fn contents(state: &StateDict) -> Vec<(String, String, Vec<u64>)> {
    let tensors = state.tensors.iter().map(|(name, tensor)| {
        let bits = flat(tensor).into_iter().map(f64::to_bits).collect();
        let form = format!("{:?} {:?}", tensor.dtype(), tensor.dims());
        (name.clone(), form, bits)
    });
    let documents = state.metadata.iter();
    let documents = documents.map(|(name, text)| (name.clone(), text.clone(), Vec::new()));
    tensors.chain(documents).collect()
}

pub fn unspoiled(_: usize, _: usize, _: &mut Vec<f64>) {}
