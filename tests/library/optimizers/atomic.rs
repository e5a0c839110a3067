//! As a whole or not at all.

use super::*;

/// Lets every point of an update fail, one after the other, and then goes on as if nothing had been.
fn check_atomic<A: Algorithm>(params: A) {
    let mut shapes = vec![&[3usize, 4][..], &[LARGE], &[0], &[], &[300, 300]];
    shapes.resize(23, &[7]);
    let vars = make_vars(&shapes, DType::F32);
    let twins = copies(&vars);
    let build = |vars: &[Var]| {
        let builder = Fused::builder(vars.to_vec()).params(params.clone());
        builder
            .clip_norm(0.5)
            .loss_scale(LossScale::dynamic())
            .build()
            .unwrap()
    };
    let (mut optimizer, mut twin) = (build(&vars), build(&twins));
    for step in 0..3 {
        let store = gradients(&vars, step);
        let mut points = 0;
        loop {
            let before = (bits(&vars), counted(optimizer.progress().unwrap()));
            let armed = Faults::in_phase(Phase::Optimizer, points).arm();
            let result = commit(&mut optimizer, &store);
            if armed.fired() == 0 {
                result.unwrap();
                break;
            }
            assert!(
                matches!(result, Err(Error::ResourceExhausted(_))),
                "{result:?}"
            );
            let after = (bits(&vars), counted(optimizer.progress().unwrap()));
            assert_eq!(before, after, "point {points}");
            points += 1;
        }
        assert!(points >= vars.len(), "{points}");
        commit(&mut twin, &gradients(&twins, step)).unwrap();
        assert_eq!(bits(&vars), bits(&twins));
        let [ours, twins] = [&optimizer, &twin].map(|o| counted(o.progress().unwrap()));
        assert_eq!(ours, twins);
    }
}

#[test]
fn a_failure_at_any_point_leaves_all_as_it_was() {
    for_each_algorithm!(|params| check_atomic(params));
}

/// What a run is made of, at random.
#[derive(Debug, Clone)]
struct Run {
    dtype: DType,
    shapes: Vec<Vec<usize>>,
    clip_norm: Option<f64>,
    clip_value: Option<f64>,
    has_scale: bool,
    has_masters: bool,
    moments: Option<Moments>,
    is_strided: bool,
    /// For each step: the parameters without a gradient, as bits; the point that fails, if it is passed; and whether a gradient is
    /// not finite.
    steps: Vec<(u8, Option<usize>, bool)>,
}

fn runs() -> impl Strategy<Value = Run> {
    let dtype = prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::BF16]);
    let shape = prop::collection::vec(0usize..7, 0..4);
    let large = Just(vec![LARGE]);
    let shapes = prop::collection::vec(prop_oneof![30 => shape, 1 => large], 1..8);
    let step = (
        any::<u8>(),
        prop::option::of(0usize..9),
        prop::bool::weighted(0.1),
    );
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let smaller = vec![Moments::Float(DType::BF16), Moments::EightBit];
    let moments = prop::option::of(prop::sample::select(smaller));
    let clips = (prop::option::of(1e-3..10.), prop::option::of(1e-3..1.));
    (
        dtype,
        shapes,
        clips,
        (flags, moments),
        prop::collection::vec(step, 1..6),
    )
        .prop_map(
            |(dtype, shapes, (clip_norm, clip_value), (flags, moments), steps)| Run {
                dtype,
                shapes,
                clip_norm,
                clip_value,
                has_scale: flags.0,
                has_masters: flags.1,
                moments: moments.filter(|_| dtype != DType::F64),
                is_strided: flags.2,
                steps,
            },
        )
}

impl Run {
    fn build<A: Algorithm>(&self, params: A, vars: &[Var]) -> Fused<A> {
        let mut builder = Fused::builder(vars.to_vec()).params(params);
        if let Some(norm) = self.clip_norm {
            builder = builder.clip_norm(norm);
        }
        if let Some(value) = self.clip_value {
            builder = builder.clip_value(value);
        }
        if self.has_scale {
            builder = builder.loss_scale(LossScale::dynamic());
        }
        if self.has_masters {
            builder = builder.master_weights();
        }
        if let Some(moments) = self.moments {
            builder = builder.moments(moments);
        }
        builder.build().unwrap()
    }

    fn gradients(&self, vars: &[Var], step: usize, is_strided: bool) -> GradStore {
        let (missing, _, is_bad) = self.steps[step];
        let all = gradients(vars, step);
        let mut given = GradStore::default();
        for (i, var) in vars.iter().enumerate() {
            let mut gradient = all.get(var).unwrap().clone();
            if missing >> i & 1 == 1 {
                continue;
            }
            if is_bad && i == 0 {
                gradient = (gradient / 0.).unwrap();
            }
            if is_strided && var.rank() > 1 {
                gradient = gradient.t().unwrap().contiguous().unwrap().t().unwrap();
            }
            given.insert(var, gradient);
        }
        given
    }

    /// With failures and strides, against a twin without.
    fn check<A: Algorithm>(&self, params: A) -> Result<(), TestCaseError> {
        let shapes: Vec<&[usize]> = self.shapes.iter().map(Vec::as_slice).collect();
        let vars = make_vars(&shapes, self.dtype);
        let twins = copies(&vars);
        let mut optimizer = self.build(params.clone(), &vars);
        let mut twin = self.build(params, &twins);
        for (step, (_, point, _)) in self.steps.iter().enumerate() {
            let store = self.gradients(&vars, step, self.is_strided);
            if let Some(point) = *point {
                let before = (bits(&vars), counted(optimizer.progress().unwrap()));
                let armed = Faults::in_phase(Phase::Optimizer, point).arm();
                let result = commit(&mut optimizer, &store);
                prop_assert_eq!(result.is_err(), armed.fired() == 1);
                drop(armed);
                if result.is_err() {
                    let after = (bits(&vars), counted(optimizer.progress().unwrap()));
                    prop_assert_eq!(before, after);
                    commit(&mut optimizer, &store).unwrap();
                }
            } else {
                commit(&mut optimizer, &store).unwrap();
            }
            commit(&mut twin, &self.gradients(&twins, step, false)).unwrap();
            prop_assert_eq!(bits(&vars), bits(&twins));
            let [ours, twins] = [&optimizer, &twin].map(|o| counted(o.progress().unwrap()));
            prop_assert_eq!(ours, twins);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_update_happens_as_a_whole_or_not_at_all(run in runs()) {
        for_each_algorithm!(|params| run.check(params)?);
    }
}
