//! An update allocates nothing on the host, wherever the parameters are, and neither does `TrackingAllocator` itself. One test alone in its
//! program: the allocator counts every thread's.

mod support;
#[path = "support/tracked.rs"]
mod tracked;

use std::sync::LazyLock;

use candle_core::backprop::GradStore;
use candle_core::utils::barrier_pool;
use candle_core::{DType, Device, Tensor, Var};
use candle_headroom::optim::{
    AdamW, Algorithm, Both, Commit, Fused, FusedBuilder, LossScale, Moments, ParamsAdam,
    ParamsAdamW, ParamsLion, ParamsSgd, Sgd,
};
use candle_nn::Optimizer;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use support::wave;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

/// Computed once, because it takes longer than an update.
static WAVE: LazyLock<Tensor> = LazyLock::new(|| wave(1 << 17, 0, DType::F64).unwrap());

fn tensor(shape: &[usize], phase: usize, dtype: DType) -> Tensor {
    let part = WAVE.narrow(0, phase, shape.iter().product()).unwrap();
    part.to_dtype(dtype).unwrap().reshape(shape).unwrap()
}

/// Small ones, a matrix and a vector that are shared out among threads, and some without elements or dimensions. In f32 the small ones are together
/// large enough for several threads.
fn shapes(device: &Device, dtype: DType) -> Vec<Vec<usize>> {
    let small = if dtype == DType::F32 {
        [40, 41]
    } else {
        [5, 7]
    };
    let mut shapes = vec![small.to_vec(); 40];
    shapes.extend([
        vec![],
        vec![256, 257],
        vec![65_537],
        vec![2, 3, 4],
        vec![300],
    ]);
    if device.is_cpu() {
        // On a GPU candle has no tensors without elements.
        shapes.push(vec![0]);
    }
    shapes
}

fn strided(gradient: Tensor) -> Tensor {
    match gradient.rank() {
        0 | 1 => gradient,
        _ => gradient.t().unwrap().contiguous().unwrap().t().unwrap(),
    }
}

/// What is allocated, moved and freed in updates with these gradients, after a first.
fn allocations<A: Algorithm>(
    device: &Device,
    params: &A,
    dtype: DType,
    gradient_dtype: DType,
    layout: fn(Tensor) -> Tensor,
    with: fn(FusedBuilder<A>) -> FusedBuilder<A>,
) -> (usize, usize, usize) {
    let shapes = shapes(device, dtype);
    let vars = shapes.iter().enumerate();
    let on_device = |tensor: Tensor| tensor.to_device(device).unwrap();
    let vars =
        vars.map(|(i, shape)| Var::from_tensor(&on_device(tensor(shape, i, dtype))).unwrap());
    let vars: Vec<_> = vars.collect();
    let builder = Fused::builder(vars.clone()).params(params.clone());
    let mut optimizer = with(builder).build().unwrap();
    let mut stores = [GradStore::default(), GradStore::default()];
    for (i, var) in vars.iter().enumerate() {
        let gradient = layout(on_device(tensor(var.dims(), 100 + i, gradient_dtype)));
        // A step that is skipped, where anybody looks.
        stores[1].insert(var, (&gradient / 0.).unwrap());
        stores[0].insert(var, gradient);
    }
    let one = Tensor::ones((), DType::F32, device).unwrap();
    optimizer.scale_loss(&one).unwrap();
    optimizer.commit(&stores[0]).unwrap();
    let mut counts = (0, 0, 0);
    for store in [&stores[0], &stores[1], &stores[0]] {
        // With a loss scale, each update is of another loss.
        optimizer.scale_loss(&one).unwrap();
        let region = Region::new(ALLOCATOR);
        optimizer.commit(store).unwrap();
        let change = region.change();
        counts.0 += change.allocations;
        counts.1 += change.reallocations;
        counts.2 += change.deallocations;
    }
    counts
}

fn check<A: Algorithm>(device: &Device, params: A) {
    let all = |builder: FusedBuilder<A>| {
        let builder = builder.clip_norm(0.5).clip_value(0.1).skip_non_finite();
        builder.loss_scale(LossScale::dynamic())
    };
    let plain = |gradient| gradient;
    let count = |dtype, gradient_dtype, layout, with| {
        let found = allocations(device, &params, dtype, gradient_dtype, layout, with);
        assert_eq!(found, (0, 0, 0), "{device:?} {params:?} {dtype:?}");
    };
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        count(dtype, dtype, plain, |builder| builder);
        count(dtype, dtype, strided, all);
    }
    count(DType::F32, DType::F32, strided, |builder| {
        builder.moments(Moments::EightBit)
    });
    count(DType::BF16, DType::F32, plain, |builder| {
        builder.stochastic_rounding().moments(Moments::EightBit)
    });
    for dtype in [DType::F16, DType::BF16] {
        count(dtype, DType::F32, plain, |builder| builder.master_weights());
        count(dtype, DType::F32, strided, |builder| {
            let builder = builder.clip_norm(0.5).master_weights();
            builder.moments(DType::BF16)
        });
    }
}

/// candle's threads exist after their first work.
fn warm_up() {
    barrier_pool().execute(|_| {});
}

/// The count counts: candle's own optimizer allocates in each update.
fn check_count() {
    let var = Var::from_tensor(&tensor(&[8], 0, DType::F32)).unwrap();
    let mut optimizer = candle_nn::AdamW::new_lr(vec![var.clone()], 0.1).unwrap();
    let mut store = GradStore::default();
    store.insert(&var, tensor(&[8], 1, DType::F32));
    let region = Region::new(ALLOCATOR);
    optimizer.step(&store).unwrap();
    assert!(region.change().allocations > 5);
}

/// New moments take no memory of the system before they are written.
#[cfg(target_os = "linux")]
fn check_new() {
    let resident = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let mut words = status.split_whitespace().skip_while(|&w| w != "VmRSS:");
        words.nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let var = Var::zeros(1 << 24, DType::F32, &Device::Cpu).unwrap();
    let before = resident();
    let optimizer = AdamW::builder(vec![var]).build().unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < optimizer.state_bytes() / 8, "{grown} bytes");
}

/// An update of two optimizers is no exception.
fn check_both(device: &Device) {
    let [first, second] = [0, 1].map(|phase| {
        let values = tensor(&[300], phase, DType::F32).to_device(device).unwrap();
        Var::from_tensor(&values).unwrap()
    });
    let adamw = AdamW::builder(vec![("first", first.clone())]).clip_norm(0.5);
    let sgd = Sgd::builder(vec![("second", second.clone())]);
    let (adamw, sgd) = (adamw.build().unwrap(), sgd.build().unwrap());
    let mut both = Both::new(("adamw", adamw), ("sgd", sgd)).unwrap();
    let mut store = GradStore::default();
    for var in [&first, &second] {
        store.insert(var, var.copy().unwrap());
    }
    both.commit(&store).unwrap();
    let region = Region::new(ALLOCATOR);
    both.commit(&store).unwrap();
    let change = region.change();
    let counts = [
        change.allocations,
        change.reallocations,
        change.deallocations,
    ];
    assert_eq!(counts, [0; 3], "{device:?}");
}

fn check_all(device: &Device) {
    check_both(device);
    check(device, ParamsAdamW::default());
    check(device, ParamsAdam::default());
    check(device, ParamsSgd::default());
    let params = ParamsSgd {
        momentum: 0.9,
        nesterov: true,
        ..Default::default()
    };
    check(device, params);
    check(device, ParamsLion::default());
}

#[test]
fn an_update_and_the_tracking_allocator_allocate_nothing() {
    tracked::check(ALLOCATOR);
    warm_up();
    check_count();
    #[cfg(target_os = "linux")]
    check_new();
    check_all(&Device::Cpu);
    if cfg!(feature = "cuda") {
        check_all(&Device::new_cuda_with_stream(0).unwrap());
    }
}
