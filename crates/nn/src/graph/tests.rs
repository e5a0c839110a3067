use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_core::backprop::GradStore;
use candle_core::{Device, Error, Result, Tensor, Var};

use super::gradient::{Gradient, address};
use super::mailbox::{Mail, Mailbox};
use super::operation::operation;
use super::origin::Origin;
use super::pass::within;
use super::{backward, record};

/// The input as its own function.
fn identity(xs: &Tensor) -> Result<Tensor> {
    record("identity", [xs], xs.detach(), |given| {
        Ok([Some(given.gradient)])
    })
}

/// a · b, whose backward pass fails where `calls` comes to 0.
fn product(a: &Tensor, b: &Tensor, calls: &Arc<AtomicUsize>) -> Result<Tensor> {
    let calls = Arc::clone(calls);
    record(
        "product",
        [a, b],
        (a.detach() * b.detach())?,
        move |given| {
            if calls.fetch_sub(1, Relaxed) == 1 {
                return Err(Error::Msg("once".into()));
            }
            let [a, b] = &given.inputs;
            let [of_a, of_b] = given.needs;
            let gradient = |other: &Tensor| &given.gradient * other;
            let of_a = of_a.then(|| gradient(b)).transpose()?;
            Ok([of_a, of_b.then(|| gradient(a)).transpose()?])
        },
    )
}

fn var(values: [f32; 3]) -> Result<Var> {
    Var::new(&values, &Device::Cpu)
}

fn gradient(store: &GradStore, var: &Var) -> Result<Vec<f32>> {
    store.get(var).expect("a gradient").to_vec1()
}

#[test]
fn an_output_that_shares_the_storage_of_an_input_is_copied() -> Result<()> {
    let var = Var::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
    for len in 0..=3 {
        let part = var.narrow(0, 0, len)?;
        let expected = part.to_vec2::<f32>()?;
        let output = identity(&part)?;
        assert_eq!(output.to_vec2::<f32>()?, expected);
        assert_eq!(part.to_vec2::<f32>()?, expected);
        assert_eq!(var.to_vec2::<f32>()?, [[1., 2.], [3., 4.], [5., 6.]]);
        let store = output.sum_all()?.backward()?;
        let sum = store.get(&var).map(Tensor::sum_all).transpose()?;
        let sum = sum.map(|sum| sum.to_scalar::<f32>()).transpose()?;
        assert_eq!(sum, Some(2. * len as f32));
    }
    Ok(())
}

/// Operations that consume each other's outputs twice, directly and through candle's.
fn tangle(x: &Var, y: &Var, calls: &Arc<AtomicUsize>) -> Result<Tensor> {
    let once = product(x, y, calls)?;
    let squared = product(&once, &once, calls)?;
    let mixed = product(&squared, &(&once + x.as_tensor())?, calls)?;
    let passed = identity(&identity(&mixed)?)?;
    let sum = product(&passed, &identity(&once)?, calls)?;
    (sum + &squared)?.sum_all()
}

/// The same by candle.
fn composed(x: &Var, y: &Var) -> Result<Tensor> {
    let once = (x.as_tensor() * y.as_tensor())?;
    let squared = (&once * &once)?;
    let mixed = (&squared * (&once + x.as_tensor())?)?;
    ((mixed * &once)? + &squared)?.sum_all()
}

/// Small integers, so that every order of sums gives the same bits.
#[test]
fn gradients_of_all_paths_add_up() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let loss = tangle(&x, &y, &calls)?;
    let expected = composed(&x, &y)?.backward()?;
    for _ in 0..2 {
        let found = loss.backward()?;
        // None of the graph's scalars, whose values mean nothing, is among them.
        assert_eq!(found.get_ids().count(), 2);
        for var in [&x, &y] {
            assert_eq!(gradient(&found, var)?, gradient(&expected, var)?);
        }
    }
    Ok(())
}

/// Scalars are not initialized on CUDA, and NaN in a debug build here: no gradient depends on them.
#[test]
fn scalars_of_the_graph_are_not_read() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let loss = tangle(&x, &y, &calls)?;
    let nodes = loss.sorted_nodes().into_iter();
    let scalars = nodes.filter(|node| node.rank() == 0 && node.id() != loss.id());
    let scalars = scalars.map(|node| node.to_scalar::<f32>());
    let scalars = scalars.collect::<Result<Vec<_>>>()?;
    assert_eq!(scalars.len(), 7);
    let is_nan = scalars.iter().all(|scalar| scalar.is_nan());
    assert_eq!(is_nan, cfg!(debug_assertions));
    assert!(loss.to_scalar::<f32>()?.is_finite());
    let found = loss.backward()?;
    for id in found.get_ids() {
        let gradient = found.get_id(*id).expect("its gradient").to_vec1::<f32>()?;
        assert!(gradient.iter().all(|number| number.is_finite()));
    }
    Ok(())
}

#[test]
fn a_pass_that_failed_leaves_nothing_behind() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let expected = composed(&x, &y)?.backward()?;
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let loss = tangle(&x, &y, &calls)?;
    const PRODUCTS: usize = 4;
    for point in 1..=PRODUCTS + 1 {
        calls.store(point, Relaxed);
        assert_eq!(loss.backward().is_err(), point <= PRODUCTS);
        calls.store(usize::MAX, Relaxed);
        // Over the same graph, and from another root.
        let store = loss.backward()?;
        let other = (&loss * 1.)?.backward()?;
        for var in [&x, &y] {
            assert_eq!(gradient(&store, var)?, gradient(&expected, var)?);
            assert_eq!(gradient(&other, var)?, gradient(&expected, var)?);
        }
    }
    Ok(())
}

/// Neither a copy of it nor a sum with zeros.
#[test]
fn a_gradient_arrives_in_its_own_storage() -> Result<()> {
    let x = var([1., 2., 3.])?;
    let sent = Arc::new(AtomicUsize::new(0));
    let note = Arc::clone(&sent);
    let first = record("first", [x.as_tensor()], x.sqr()?.detach(), move |given| {
        assert_eq!(note.load(Relaxed), address(&given.gradient).addr());
        let [x] = &given.inputs;
        Ok([Some(((given.gradient * x)? * 2.)?)])
    })?;
    let second = record("second", [&first], (first.detach() * 3.)?, move |given| {
        let gradient = (given.gradient * 3.)?;
        sent.store(address(&gradient).addr(), Relaxed);
        Ok([Some(gradient)])
    })?;
    let store = second.sum_all()?.backward()?;
    assert_eq!(gradient(&store, &x)?, [6., 12., 18.]);
    Ok(())
}

/// candle adds nothing to the gradient of a Var, and what other operations give is added to it.
#[test]
fn a_pass_of_ours_hands_gradients_to_vars() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let loss = tangle(&x, &y, &calls)?;
    let expected = loss.backward()?;
    for _ in 0..2 {
        let found = backward(&loss)?;
        assert_eq!(found.get_ids().count(), 2);
        for var in [&x, &y] {
            assert_eq!(gradient(&found, var)?, gradient(&expected, var)?);
        }
    }

    let sent = Arc::new(AtomicUsize::new(0));
    let note = Arc::clone(&sent);
    let root = record("root", [x.as_tensor()], x.sqr()?.detach(), move |given| {
        let gradient = (given.gradient * &given.inputs[0])?;
        note.store(address(&gradient).addr(), Relaxed);
        Ok([Some(gradient)])
    })?;
    let store = backward(&root.sum_all()?)?;
    let of_x = store.get(&x).expect("a gradient");
    assert_eq!(address(of_x).addr(), sent.load(Relaxed));

    // What fails leaves nothing for the next pass.
    calls.store(2, Relaxed);
    assert!(backward(&loss).is_err());
    calls.store(usize::MAX, Relaxed);
    assert_eq!(gradient(&backward(&loss)?, &x)?, gradient(&expected, &x)?);
    Ok(())
}

/// A program's own operation may differentiate another graph in its backward pass: candle has those gradients, also of the same Vars.
#[test]
fn a_pass_within_ours_is_candles() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let (of_x, of_calls) = (x.clone(), Arc::clone(&calls));
    let outer = record("outer", [y.as_tensor()], y.detach(), move |given| {
        let inner = product(&of_x, &of_x, &of_calls)?.sum_all()?.backward()?;
        assert_eq!(gradient(&inner, &of_x)?, [2., -4., 6.]);
        Ok([Some(given.gradient)])
    })?;
    let store = backward(&product(&outer, &x, &calls)?.sum_all()?)?;
    assert_eq!(gradient(&store, &x)?, [2., 1., -1.]);
    assert_eq!(gradient(&store, &y)?, [1., -2., 3.]);
    Ok(())
}

#[test]
fn sums_change_only_what_is_alone() -> Result<()> {
    let of = |values: [f32; 2]| Tensor::new(&values, &Device::Cpu);
    for (first, second) in [(true, true), (true, false), (false, true), (false, false)] {
        let (a, b) = (of([1., 2.])?, of([10., 20.])?);
        let given = |tensor: &Tensor, is_alone| Gradient::new(tensor.clone(), is_alone);
        let sum = given(&a, first).plus(given(&b, second))?;
        assert!(sum.is_alone);
        assert_eq!(sum.tensor.to_vec1::<f32>()?, [11., 22.]);
        if !first {
            assert_eq!(a.to_vec1::<f32>()?, [1., 2.]);
        }
        if first || !second {
            assert_eq!(b.to_vec1::<f32>()?, [10., 20.]);
        }
    }
    // A broadcast tensor has fewer elements in memory than it shows.
    let wide = of([1., 2.])?.broadcast_as((3, 2))?;
    let sum = Gradient::alone(wide.clone()).plus(Gradient::alone(wide))?;
    assert_eq!(sum.tensor.to_vec2::<f32>()?, [[2., 4.]; 3]);
    Ok(())
}

/// A residual connection hands one gradient to two operations; the sum on one way may not change it on the other.
#[test]
fn a_gradient_for_two_is_changed_by_neither() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let sum = |a: &Tensor, b: &Tensor| {
        record("sum", [a, b], (a.detach() + b.detach())?, |given| {
            Ok([Some(given.gradient.clone()), Some(given.gradient)])
        })
    };
    let residual = |once: &Tensor, add: &dyn Fn(&Tensor, &Tensor) -> Result<Tensor>| {
        let squared = product(once, once, &calls)?;
        let next = add(&squared, once)?;
        add(&next, &product(&next, once, &calls)?)?.sum_all()
    };
    let found = residual(&product(&x, &y, &calls)?, &sum)?.backward()?;
    let expected = residual(&product(&x, &y, &calls)?, &|a, b| a + b)?.backward()?;
    for var in [&x, &y] {
        assert_eq!(gradient(&found, var)?, gradient(&expected, var)?);
    }
    Ok(())
}

/// More sources than candle's operations have arguments, and several outputs.
#[test]
fn chains_of_links_give_each_source_its_gradient() -> Result<()> {
    for count in 1..=8 {
        let vars = (0..count).map(|i| var([i as f32; 3]));
        let vars = vars.collect::<Result<Vec<_>>>()?;
        let recorded = vars.iter().map(|var| identity(var));
        let recorded = recorded.collect::<Result<Vec<_>>>()?;
        // Every other source is recorded.
        let sources = vars.iter().zip(&recorded).enumerate();
        let sources = sources.map(|(i, (var, recorded))| match i % 2 {
            0 => var.as_tensor(),
            _ => recorded,
        });
        let sources: Vec<_> = sources.collect();
        let outputs = vec![
            var([1.; 3])?.detach(),
            Tensor::zeros(2, candle_core::DType::U32, &Device::Cpu)?,
            var([2.; 3])?.detach(),
        ];
        let backward = move |mail: Mail, outputs: &[Tensor]| -> Result<Mail> {
            assert_eq!(outputs.len(), 3);
            let gradient = mail
                .into_iter()
                .nth(2)
                .flatten()
                .expect("of the last output");
            // One is missing.
            (0..count)
                .map(|i| match i {
                    3 => Ok(None),
                    _ => Ok(Some(Gradient::alone((&gradient.tensor * i as f64)?))),
                })
                .collect()
        };
        let outputs = operation("many", &sources, outputs, true, Box::new(backward))?;
        assert!(!outputs[1].track_op());
        let store = outputs[2].sum_all()?.backward()?;
        for (i, var) in vars.iter().enumerate() {
            let expected = if i == 3 { 0. } else { i as f32 };
            assert_eq!(gradient(&store, var)?, [expected; 3], "{i} of {count}");
        }
    }
    Ok(())
}

#[test]
fn origins_are_forgotten_with_their_outputs() -> Result<()> {
    let x = var([1., 2., 3.])?;
    let output = identity(&x)?;
    let (origin, _) = Origin::of(&output).expect("an origin");
    for view in [
        output.clone(),
        output.reshape((3, 1))?,
        output.unsqueeze(0)?.t()?,
        output.narrow(0, 1, 2)?,
    ] {
        assert!(Origin::of(&view).is_some());
        assert!(Origin::of(&view.detach()).is_none());
    }
    let others = [
        x.as_tensor().clone(),
        output.broadcast_as((2, 3))?,
        output.force_contiguous()?,
        (&output * 1.)?,
        Var::from_tensor(&output)?.into_inner(),
    ];
    for other in others {
        assert!(Origin::of(&other).is_none(), "{other:?}");
    }
    let weak = Arc::downgrade(&origin);
    drop((output, origin));
    assert!(weak.upgrade().is_none());
    Ok(())
}

#[test]
fn mail_lives_as_long_as_the_scalar_and_belongs_to_one_pass() -> Result<()> {
    let (x, mailbox) = (var([1., 2., 3.])?, Mailbox::default());
    let leave = |value: f32| {
        let tensor = Tensor::new(value, &Device::Cpu)?;
        mailbox.leave(&x, [(1, Gradient::alone(tensor))])
    };
    let taken = || -> Option<Vec<Option<f32>>> {
        let value = |gradient: Gradient| gradient.tensor.to_scalar().expect("a number");
        let mail = mailbox.take().ok()?.into_iter();
        Some(mail.map(|gradient| gradient.map(value)).collect())
    };
    drop(leave(1.)?);
    assert_eq!(taken(), None);
    let held = (leave(2.)?, leave(3.)?);
    let (inner, _) = within(None, || {
        assert_eq!(taken(), None);
        let held = leave(7.)?;
        Ok::<_, Error>((taken(), held))
    });
    assert_eq!(inner?.0, Some(vec![None, Some(7.)]));
    assert_eq!(taken(), Some(vec![None, Some(5.)]));
    assert_eq!(taken(), None);
    drop(held);
    Ok(())
}

/// As of queries, keys and values from one product: each fills its part. What overlaps, or comes beside the whole, is added.
#[test]
fn gradients_of_parts_add_up() -> Result<()> {
    let values = Tensor::arange(1f32, 25., &Device::Cpu)?.reshape((2, 6, 2))?;
    let x = Var::from_tensor(&values)?;
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let parts = [(0, 2), (2, 2), (4, 2), (3, 3), (0, 2)];
    for count in 1..=parts.len() {
        for with_whole in [false, true] {
            let loss = |y: &Tensor, is_recorded: bool| -> Result<Tensor> {
                let square = |part: &Tensor| match is_recorded {
                    true => product(part, part, &calls)?.sum_all(),
                    false => (part * part)?.sum_all(),
                };
                let parts = parts[..count].iter();
                let parts = parts.map(|&(start, len)| square(&y.narrow(1, start, len)?));
                let whole = with_whole.then(|| square(y));
                let mut losses = parts.chain(whole);
                let first = losses.next().expect("a part")?;
                losses.try_fold(first, |sum, loss| sum + loss?)
            };
            let y = identity(&x)?;
            let found = backward(&loss(&y, true)?)?;
            let expected = loss(&x, false)?.backward()?;
            let values = |store: &GradStore| -> Result<Vec<f32>> {
                store.get(&x).expect("a gradient").flatten_all()?.to_vec1()
            };
            assert_eq!(values(&found)?, values(&expected)?, "{count}, {with_whole}");
        }
    }
    Ok(())
}

/// The graph is made on one thread, and differentiated on several at once.
#[test]
fn threads_share_a_graph() -> Result<()> {
    let (x, y) = (var([1., -2., 3.])?, var([2., 1., -1.])?);
    let calls = Arc::new(AtomicUsize::new(usize::MAX));
    let expected = composed(&x, &y)?.backward()?;
    let loss = tangle(&x, &y, &calls)?;
    std::thread::scope(|scope| {
        let differentiate = || -> Result<()> {
            for _ in 0..50 {
                let found = loss.backward()?;
                for var in [&x, &y] {
                    assert_eq!(gradient(&found, var)?, gradient(&expected, var)?);
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(differentiate)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// Gradients pass through each view to where they belong.
#[test]
fn views_are_passed_back() -> Result<()> {
    let count = 2 * 3 * 4;
    let values = Tensor::arange(0f32, count as f32, &Device::Cpu)?.reshape((2, 3, 4))?;
    let weights = Tensor::arange(1f32, count as f32 + 1., &Device::Cpu)?;
    type Make = fn(&Tensor) -> Result<Tensor>;
    let views: [(Make, bool); 13] = [
        (|t| t.reshape((4, 6)), true),
        (|t| t.transpose(0, 1), true),
        (
            |t| t.reshape((2, 3, 2, 2))?.permute((3, 0, 2, 1))?.unsqueeze(1),
            true,
        ),
        (
            |t| {
                t.flatten_all()?
                    .reshape((6, 1, 4))?
                    .transpose(0, 2)?
                    .squeeze(1)
            },
            true,
        ),
        (|t| t.narrow(1, 1, 2), true),
        (|t| t.narrow(0, 1, 1), true),
        (|t| t.narrow(2, 1, 2)?.transpose(0, 1), true),
        (
            |t| {
                t.transpose(0, 2)?
                    .narrow(0, 3, 1)?
                    .narrow(2, 0, 2)?
                    .squeeze(0)
            },
            true,
        ),
        (|t| t.narrow(1, 1, 2)?.narrow(2, 1, 2), false),
        (
            |t| t.narrow(0, 1, 1)?.narrow(1, 2, 1)?.narrow(2, 1, 1),
            true,
        ),
        (|t| t.narrow(1, 0, 1)?.broadcast_as((2, 3, 4)), false),
        (|t| t.unsqueeze(0)?.broadcast_as((2, 2, 3, 4)), false),
        (|t| t.transpose(1, 2)?.reshape((6, 4)), false),
    ];
    for (index, (make, is_view)) in views.into_iter().enumerate() {
        let loss = |view: &Tensor, is_recorded: bool| -> Result<Tensor> {
            let part = view.elem_count().min(count);
            let weights = weights.narrow(0, 0, part)?;
            let weights = weights.reshape((part,))?.repeat(view.elem_count() / part)?;
            let weights = weights.reshape(view.shape())?;
            let calls = Arc::new(AtomicUsize::new(usize::MAX));
            match is_recorded {
                true => product(view, &weights, &calls)?.sum_all(),
                false => (view * weights)?.sum_all(),
            }
        };
        let var = Var::from_tensor(&values)?;
        let view = make(&identity(&var)?)?;
        assert_eq!(Origin::of(&view).is_some(), is_view, "view {index}");
        let found = loss(&view, true)?.backward()?;
        let expected = loss(&make(&var)?, false)?.backward()?;
        let gradient = |store: &GradStore| {
            store
                .get(&var)
                .expect("a gradient")
                .flatten_all()?
                .to_vec1::<f32>()
        };
        assert_eq!(gradient(&found)?, gradient(&expected)?, "view {index}");
    }
    Ok(())
}
