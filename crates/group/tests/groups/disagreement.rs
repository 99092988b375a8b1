//! Members that make different calls, are missing or leave.

use super::*;

#[test]
fn members_with_different_lists_get_an_error_and_do_not_hang() {
    for links in BOTH {
        for size in [2, 3, 5, 8] {
            let wrong = size - 1;
            let all_are_there = Barrier::new(size);
            let told = each(links, size, |node, rank| {
                all_are_there.wait();
                let mut list = members(size);
                if rank == wrong {
                    list.addresses.push(Address::new(1, 999));
                }
                Group::join(node, list, rank, PATIENCE).map(drop)
            });
            for (rank, told) in told.into_iter().enumerate() {
                let error = told.expect_err("they disagree");
                let expected = match rank == wrong {
                    true => size,
                    false => size + 1,
                };
                match &error {
                    GroupError::Disagreement { theirs } => {
                        assert_eq!(theirs.addresses.len(), expected, "rank {rank}: {error}");
                    }
                    _ => panic!("rank {rank}: {error}"),
                }
            }
        }
    }
}

#[test]
fn different_calls_are_reported_with_their_members() {
    for links in BOTH {
        for size in [2, 3, 8] {
            let told = each_in_group(links, size, |group| {
                group.barrier(PATIENCE).expect("all come");
                let mut word = [0_u64];
                match group.rank() {
                    1 => loop {
                        // The root of a broadcast may finish before the others notice.
                        group.broadcast(1, &mut vec![1], PATIENCE)?;
                    },
                    _ => group.allreduce_numbers(&mut word, Combine::Sum, PATIENCE),
                }
            });
            for told in told {
                let error = told.expect_err("they differ");
                let text = error.to_string();
                assert!(matches!(error, GroupError::Mismatch { .. }), "{text}");
                assert!(text.contains("rank 1 (1:101) made a broadcast"), "{text}");
                assert!(text.contains("made an allreduce"), "{text}");
            }
        }
    }
}

#[test]
fn different_lengths_are_reported() {
    for links in BOTH {
        let told = each_in_group(links, 3, |group| {
            let mut bytes = vec![0; 8 * (1 + usize::from(group.rank() == 2))];
            group.allreduce(&mut bytes, |_, _| {}, PATIENCE)
        });
        for told in told {
            let error = told.expect_err("they differ");
            assert!(matches!(error, GroupError::Mismatch { .. }), "{error}");
        }
    }
}

#[test]
fn a_time_out_names_the_missing_member_to_all() {
    for links in BOTH {
        let done = Barrier::new(3);
        let told = each_in_group(links, 3, |group| {
            if group.rank() == 2 {
                done.wait();
                return group.barrier(PATIENCE);
            }
            let told = group.barrier(Duration::from_millis(100));
            done.wait();
            told
        });
        for told in told {
            let error = told.expect_err("one does not come");
            let GroupError::TimedOut { member, waited_for } = &error else {
                panic!("{error}");
            };
            assert!(member.rank < 2, "{error}");
            assert!(
                waited_for
                    .iter()
                    .all(|member| member.rank != 0 || member.rank == 2)
            );
        }
    }
}

#[test]
fn a_missing_member_is_named() {
    let directory = directory();
    let node = open(directory.path(), Links::Shm);
    let error = Group::join(&node, members(2), 0, Duration::from_millis(200));
    let error = error.expect_err("no other member joins");
    assert!(error.to_string().contains("rank 1 (1:101)"), "{error}");
    let error = Group::join(&node, members(2), 2, PATIENCE).expect_err("no such rank");
    assert!(matches!(error, GroupError::Members { .. }), "{error}");
    let twice = Members::first([port(0), port(1), port(0)]);
    let error = Group::join(&node, twice, 0, PATIENCE).expect_err("twice");
    assert!(
        error.to_string().contains("1:100 is listed twice"),
        "{error}"
    );
    let _taken = Group::join(&node, members(1), 0, PATIENCE).expect("alone");
    let error = Group::join(&node, members(1), 0, PATIENCE).expect_err("taken");
    assert!(
        matches!(error, GroupError::Open(OpenError::Taken { .. })),
        "{error}"
    );
}

#[test]
fn a_member_may_leave_while_others_are_in_the_last_call() {
    for links in BOTH {
        for size in [2, 5, 8] {
            for _ in 0..20 {
                each_in_group(links, size, |group| {
                    let mut data = pattern(3000 * usize::from(group.rank() == 0), 0, 0);
                    group.barrier(PATIENCE).expect("all come");
                    group.broadcast(0, &mut data, PATIENCE).expect("it comes");
                    assert_eq!(data.len(), 3000);
                });
            }
        }
    }
}

#[test]
fn a_member_that_leaves_too_early_is_named() {
    for links in BOTH {
        let told = each(links, 5, |node, rank| {
            let mut group = join(node, 5, rank);
            group.barrier(PATIENCE).expect("all come");
            if rank == 3 {
                return None;
            }
            Some(group.barrier(PATIENCE))
        });
        for told in told.into_iter().flatten() {
            let error = told.expect_err("one has left");
            let named = match &error {
                GroupError::Left { member } => member.rank,
                GroupError::Gone { members } => members[0].rank,
                _ => panic!("{error}"),
            };
            assert_eq!(named, 3, "{error}");
        }
    }
}

#[test]
fn joining_and_leaving_members_start_new_generations() {
    for links in BOTH {
        each(links, 5, |node, rank| {
            let later = Members {
                generation: 7,
                addresses: [4, 0, 3, 1].map(port).to_vec(),
            };
            let mut group = if rank < 4 {
                let mut group = join(node, 4, rank);
                group.barrier(PATIENCE).expect("all come");
                if rank == 2 {
                    return;
                }
                group.reform(later, PATIENCE).expect("all come");
                group
            } else {
                Group::join(node, later, 0, PATIENCE).expect("all come")
            };
            let mut ranks = [1 << (8 * group.rank())];
            (group.allreduce_numbers::<u64>(&mut ranks, Combine::Sum, PATIENCE)).expect("all come");
            assert_eq!(ranks, [0x0101_0101]);
        });
    }
}

#[test]
fn an_excluded_member_gets_an_error() {
    for links in BOTH {
        // A member that comes after the others have left would form its own group.
        let is_told = AtomicBool::new(false);
        each_in_group(links, 4, |group| {
            group.barrier(PATIENCE).expect("all come");
            let is_excluded = group.rank() == 2;
            let lost = if is_excluded { &[][..] } else { &[2] };
            let reformed = group.reform_without(lost, PATIENCE);
            if is_excluded {
                is_told.store(true, Ordering::Relaxed);
                let error = reformed.expect_err("no other member reforms");
                assert!(matches!(error, GroupError::Excluded { .. }), "{error}");
            } else {
                reformed.expect("the others agree");
                group.barrier(PATIENCE).expect("all come");
                assert_eq!(group.size(), 3);
                let deadline = Instant::now() + PATIENCE;
                while !is_told.load(Ordering::Relaxed) && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
    }
}

#[test]
fn members_that_miss_different_ones_agree_on_the_rest() {
    for links in BOTH {
        each_in_group(links, 6, |group| {
            group.barrier(PATIENCE).expect("all come");
            let lost = match group.rank() {
                0 => &[4][..],
                1 => &[5],
                2 | 3 => &[],
                _ => return,
            };
            group.reform_without(lost, PATIENCE).expect("they agree");
            let mut ranks = [1];
            (group.allreduce_numbers::<u64>(&mut ranks, Combine::Sum, PATIENCE)).expect("all come");
            assert_eq!((group.size(), ranks), (4, [4]));
        });
    }
}
