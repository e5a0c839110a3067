//! Saved state: the ranks' parts make the whole, which any number of ranks loads.

use super::*;

/// After each save another number of ranks goes on, and then one alone.
fn go_on<A: Algorithm>(params: &A, dtype: DType, options: Options<'_, A>) {
    let mut first = ranks(3, dtype, params, options);
    first.run(0..5, &unspoiled);
    let (mut state, mut start) = (first.merged(), 5);
    assert_eq!(
        contents(&state),
        contents(&first.whole.optimizer.state().unwrap())
    );
    let mut vars = first.whole.vars;
    for count in [4, 1, 2] {
        let mut next = ranks(count, dtype, params, options);
        for one in next.ranks.iter_mut().chain([&mut next.whole]) {
            one.optimizer.load_state(&state).unwrap();
            let pairs = one.vars.iter().zip(&vars);
            pairs.for_each(|(var, from)| var.set(from).unwrap());
        }
        assert_eq!(contents(&next.merged()), contents(&state));
        next.run(start..start + 3, &unspoiled);
        (state, start) = (next.merged(), start + 3);
        vars = next.whole.vars;
    }
    let mut straight = ranks(1, dtype, params, options);
    straight.run(0..start, &unspoiled);
    assert!(straight.whole.bits() == bits(&vars));
    assert_eq!(contents(&straight.merged()), contents(&state));
}

#[test]
fn any_number_of_ranks_goes_on() {
    go_on(&adamw(), DType::F32, &|b| b.clip_norm(0.5));
    go_on(&adamw(), DType::BF16, &|b| b.master_weights());
    go_on(&adamw(), DType::BF16, &|b| {
        b.stochastic_rounding().moments(DType::BF16)
    });
    go_on(&lion(), DType::F32, &|b| b.moments(Moments::EightBit));
    go_on(&sgd(0.9), DType::F16, &|b| {
        b.master_weights().loss_scale(LossScale::dynamic())
    });
}

/// A rank's part goes through a file.
#[test]
fn parts_are_saved_as_files() {
    let mut ranks = ranks(3, DType::F32, &adamw(), &plain);
    ranks.run(0..2, &unspoiled);
    let folder = tempfile::tempdir().unwrap();
    let parts = ranks.ranks.iter().enumerate().map(|(rank, one)| {
        let path = folder.path().join(rank.to_string());
        one.optimizer.state().unwrap().save(&path).unwrap();
        StateDict::load(&path).unwrap()
    });
    let merged = StateDict::merge(parts.collect()).unwrap();
    assert_eq!(
        contents(&merged),
        contents(&ranks.whole.optimizer.state().unwrap())
    );
    // A whole one is put together already.
    let again = StateDict::merge(vec![merged.clone()]).unwrap();
    assert_eq!(contents(&again), contents(&merged));
}

/// Parts that do not make a whole.
#[test]
fn what_does_not_fit_together_is_refused() {
    let mut ranks = ranks(3, DType::F32, &adamw(), &plain);
    ranks.run(0..2, &unspoiled);
    let parts = || {
        let parts = ranks
            .ranks
            .iter()
            .map(|rank| rank.optimizer.state().unwrap());
        parts.collect::<Vec<_>>()
    };
    let refused = |parts: Vec<StateDict>, words: &[&str]| {
        let error = optimizer_error(StateDict::merge(parts).unwrap_err());
        let expected = "the ranks' states cannot be put together: ";
        assert!(error.starts_with(expected), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    refused(vec![], &["none"]);
    // 4096 elements in pieces of 512: the second rank has 512..1024 first.
    refused(
        vec![parts().remove(0), parts().remove(2)],
        &["512..1024", "`p0`", "missing"],
    );
    refused(parts().split_off(1), &["0..512", "`p0`", "missing"]);
    let mut twice = parts();
    twice.push(parts().remove(1));
    refused(twice, &["512..1024", "`p0`", "twice"]);
    let mut mixed = parts();
    mixed[1] = ranks.whole.optimizer.state().unwrap();
    refused(mixed, &["whole already"]);
    let mut without = parts();
    without[2].tensors.remove("p2.exp_avg");
    refused(without, &["`p2.exp_avg`"]);
    let mut late = parts();
    late[1]
        .tensors
        .insert("p0.step".into(), Tensor::new(7i64, &Device::Cpu).unwrap());
    refused(late, &["updates", "`p0`"]);
    let mut other = parts();
    other[2].metadata.insert("optimizer".into(), "{}".into());
    refused(other, &["state 2", "counters"]);
    let mut cannot = parts();
    cannot[0].metadata.insert("pieces".into(), "[]".into());
    StateDict::merge(cannot).unwrap_err();
    let mut short = parts();
    let cut = short[1].tensors["p0.exp_avg"].narrow(0, 0, 600).unwrap();
    short[1].tensors.insert("p0.exp_avg".into(), cut);
    StateDict::merge(short).unwrap_err();
}

/// One rank's part is no checkpoint, but its own optimizer takes it back.
#[test]
fn a_part_is_loaded_by_its_rank_alone() {
    let mut ranks = ranks(2, DType::F32, &adamw(), &plain);
    ranks.run(0..2, &unspoiled);
    let part = ranks.ranks[0].optimizer.state().unwrap();
    let before = [0, 1].map(|rank: usize| contents(&ranks.ranks[rank].optimizer.state().unwrap()));
    let [first, second] = ranks.ranks.as_mut_slice() else {
        panic!("two ranks");
    };
    for other in [second, &mut ranks.whole] {
        let error = other.optimizer.load_state(&part).unwrap_err();
        let Error::State(error) = &error else {
            panic!("{error}");
        };
        let mut unfit = error.unfit.iter();
        assert!(
            unfit.any(|what| what.contains("StateDict::merge")),
            "{error}"
        );
    }
    first.optimizer.load_state(&part).unwrap();
    for (rank, before) in before.iter().enumerate() {
        assert_eq!(
            &contents(&ranks.ranks[rank].optimizer.state().unwrap()),
            before
        );
    }
    ranks.run(2..4, &unspoiled);
}
