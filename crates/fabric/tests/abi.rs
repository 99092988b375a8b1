//! The declarations in `abi/` match the headers of the installed libfabric and of version 2: a generated
//! C program prints sizes, offsets and constants.

#![allow(missing_docs, reason = "tests")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::{Command, Stdio};

use dipole_fi::abi::{atomic, cm, domain, endpoint, eq, errno, fabric, prov, rma, tagged};

/// C expressions and their values in Rust.
type Facts = Vec<(String, u64)>;

/// Offsets of members, by their names in C.
macro_rules! members {
    ($facts:ident, $c:literal = $rust:ty: $($member:ident $(as $name:ident)?),* $(,)?) => {
        $({
            let name = members!(@name $member $($name)?);
            let place = offset_of!($rust, $member) as u64;
            $facts.push((format!("offsetof({}, {name})", $c), place));
        })*
    };
    (@name $member:ident) => { stringify!($member) };
    (@name $member:ident $name:ident) => { stringify!($name) };
}

/// Offsets of members, and the size of the struct.
macro_rules! whole {
    ($facts:ident, $c:literal = $rust:ty: $($rest:tt)*) => {
        $facts.push((format!("sizeof({})", $c), size_of::<$rust>() as u64));
        members!($facts, $c = $rust: $($rest)*);
    };
}

macro_rules! numbers {
    ($facts:ident, $module:ident: $($name:ident),* $(,)?) => {
        $($facts.push((stringify!($name).to_owned(), i128::from($module::$name) as u64));)*
    };
}

#[allow(clippy::cast_possible_truncation, reason = "numbers as C prints them")]
#[allow(clippy::too_many_lines, reason = "a table")]
fn facts() -> Facts {
    let mut facts = Facts::new();
    whole!(facts, "struct fid" = fabric::Fid: class as fclass, context, ops);
    whole!(facts, "struct fi_ops" = fabric::Ops:
        size, close, bind, control, ops_open, tostr, ops_set);
    whole!(facts, "struct fi_tx_attr" = fabric::TxAttr:
        caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit, rma_iov_limit,
        tclass);
    whole!(facts, "struct fi_rx_attr" = fabric::RxAttr:
        caps, mode, op_flags, msg_order, comp_order, size, iov_limit);
    whole!(facts, "struct fi_ep_attr" = fabric::EpAttr:
        kind as type, protocol, protocol_version, max_msg_size, msg_prefix_size,
        max_order_raw_size, max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt,
        rx_ctx_cnt, auth_key_size, auth_key);
    // Version 2 appended members to these.
    members!(facts, "struct fi_domain_attr" = fabric::DomainAttr:
        domain, name, threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode,
        mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx,
        max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit, caps, mode,
        auth_key, auth_key_size, max_err_data, mr_cnt, tclass);
    whole!(facts, "struct fi_fabric_attr" = fabric::FabricAttr:
        fabric, name, prov_name, prov_version, api_version);
    whole!(facts, "struct fi_info" = fabric::Info:
        next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
        tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic);
    members!(facts, "struct fi_ops_fabric" = fabric::FabricOps:
        size, domain, passive_ep, eq_open, wait_open, trywait, domain2);
    whole!(facts, "struct fid_fabric" = fabric::FidFabric: fid, ops, api_version);
    whole!(facts, "struct fi_provider" = prov::Provider:
        version, fi_version, context, name, getinfo, fabric, cleanup);
    members!(facts, "struct fi_av_attr" = domain::AvAttr:
        kind as type, rx_ctx_bits, count, ep_per_node, name, map_addr, flags);
    members!(facts, "struct fi_ops_av" = domain::AvOps:
        size, insert, insertsvc, insertsym, remove, lookup, straddr, av_set);
    whole!(facts, "struct fid_av" = domain::FidAv: fid, ops);
    whole!(facts, "struct fid_mr" = domain::FidMr: fid, mem_desc, key);
    members!(facts, "struct fi_mr_attr" = domain::MrAttr:
        mr_iov, iov_count, access, offset, requested_key, context);
    whole!(facts, "struct fi_ops_mr" = domain::MrOps: size, reg, regv, regattr);
    members!(facts, "struct fi_ops_domain" = domain::DomainOps:
        size, av_open, cq_open, endpoint, scalable_ep, cntr_open, poll_open, stx_ctx, srx_ctx,
        query_atomic, query_collective, endpoint2);
    whole!(facts, "struct fid_domain" = domain::FidDomain: fid, ops, mr);
    whole!(facts, "struct fi_msg" = endpoint::Msg:
        msg_iov, desc, iov_count, addr, context, data);
    whole!(facts, "struct fi_ops_ep" = endpoint::EpOps:
        size, cancel, getopt, setopt, tx_ctx, rx_ctx, rx_size_left, tx_size_left);
    whole!(facts, "struct fi_ops_msg" = endpoint::MsgOps:
        size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata);
    whole!(facts, "struct fid_ep" = endpoint::FidEp:
        fid, ops, cm, msg, rma, tagged, atomic, collective);
    whole!(facts, "struct fi_ops_cm" = cm::CmOps:
        size, setname, getname, getpeer, connect, listen, accept, reject, shutdown, join);
    whole!(facts, "struct fi_msg_tagged" = tagged::MsgTagged:
        msg_iov, desc, iov_count, addr, tag, ignore, context, data);
    whole!(facts, "struct fi_ops_tagged" = tagged::TaggedOps:
        size, recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata);
    whole!(facts, "struct fi_rma_iov" = rma::RmaIov: addr, len, key);
    whole!(facts, "struct fi_msg_rma" = rma::MsgRma:
        msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data);
    whole!(facts, "struct fi_ops_rma" = rma::RmaOps:
        size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata);
    whole!(facts, "struct fi_ops_atomic" = atomic::AtomicOps:
        size, write, writev, writemsg, inject, readwrite, readwritev, readwritemsg, compwrite,
        compwritev, compwritemsg, writevalid, readwritevalid, compwritevalid);
    whole!(facts, "struct fi_ioc" = atomic::Ioc: addr, count);
    whole!(facts, "struct fi_rma_ioc" = atomic::RmaIoc: addr, count, key);
    whole!(facts, "struct fi_atomic_attr" = atomic::AtomicAttr: count, size);
    whole!(facts, "struct fi_msg_atomic" = atomic::MsgAtomic:
        msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, datatype, op, context, data);
    whole!(facts, "struct fi_eq_attr" = eq::EqAttr:
        size, flags, wait_obj, signaling_vector, wait_set);
    whole!(facts, "struct fi_ops_eq" = eq::EqOps: size, read, readerr, write, sread, strerror);
    whole!(facts, "struct fid_eq" = eq::FidEq: fid, ops);
    whole!(facts, "struct fi_cq_tagged_entry" = eq::CqEntry:
        op_context, flags, len, buf, data, tag);
    members!(facts, "struct fi_cq_err_entry" = eq::CqErrEntry:
        op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size);
    whole!(facts, "struct fi_cq_attr" = eq::CqAttr:
        size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set);
    whole!(facts, "struct fi_ops_cq" = eq::CqOps:
        size, read, readfrom, readerr, sread, sreadfrom, signal, strerror);
    whole!(facts, "struct fid_cq" = eq::FidCq: fid, ops);
    whole!(facts, "struct fi_cntr_attr" = eq::CntrAttr: events, wait_obj, wait_set, flags);
    whole!(facts, "struct fi_ops_cntr" = eq::CntrOps:
        size, read, readerr, add, set, wait, adderr, seterr);
    whole!(facts, "struct fid_cntr" = eq::FidCntr: fid, ops);
    numbers!(facts, fabric:
        FI_MSG, FI_RMA, FI_TAGGED, FI_ATOMIC, FI_READ, FI_WRITE, FI_RECV, FI_SEND, FI_REMOTE_READ,
        FI_REMOTE_WRITE, FI_MULTI_RECV, FI_REMOTE_CQ_DATA, FI_PEEK, FI_COMPLETION,
        FI_EVENT, FI_INJECT, FI_DELIVERY_COMPLETE, FI_LOCAL_COMM, FI_REMOTE_COMM,
        FI_SOURCE, FI_DISCARD, FI_SELECTIVE_COMPLETION, FI_DIRECTED_RECV, FI_CLAIM, FI_REG_MR, FI_ORDER_SAS,
        FI_ADDR_UNSPEC, FI_ADDR_NOTAVAIL, FI_MR_PROV_KEY, FI_AV_UNSPEC,
        FI_AV_TABLE, FI_PROGRESS_UNSPEC, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL,
        FI_THREAD_UNSPEC, FI_THREAD_SAFE, FI_RM_ENABLED, FI_EP_UNSPEC, FI_EP_RDM, FI_ENABLE, FI_GETWAIT, FI_GETWAITOBJ,
        FI_FORMAT_UNSPEC, FI_PROTO_UNSPEC);
    for (name, class) in [
        ("FI_CLASS_FABRIC", fabric::FI_CLASS_FABRIC),
        ("FI_CLASS_DOMAIN", fabric::FI_CLASS_DOMAIN),
        ("FI_CLASS_EP", fabric::FI_CLASS_EP),
        ("FI_CLASS_AV", fabric::FI_CLASS_AV),
        ("FI_CLASS_MR", fabric::FI_CLASS_MR),
        ("FI_CLASS_EQ", fabric::FI_CLASS_EQ),
        ("FI_CLASS_CQ", fabric::FI_CLASS_CQ),
        ("FI_CLASS_CNTR", fabric::FI_CLASS_CNTR),
    ] {
        facts.push((name.to_owned(), class as u64));
    }
    numbers!(facts, atomic:
        FI_INT8, FI_UINT8, FI_INT16, FI_UINT16, FI_INT32, FI_UINT32, FI_INT64, FI_UINT64,
        FI_FLOAT, FI_DOUBLE, FI_FLOAT_COMPLEX, FI_DOUBLE_COMPLEX, FI_LONG_DOUBLE, FI_INT128,
        FI_UINT128, FI_MIN, FI_MAX, FI_SUM, FI_PROD, FI_LOR, FI_LAND, FI_BOR, FI_BAND, FI_LXOR,
        FI_BXOR, FI_ATOMIC_READ, FI_ATOMIC_WRITE, FI_CSWAP, FI_CSWAP_NE, FI_CSWAP_LE, FI_CSWAP_LT,
        FI_CSWAP_GE, FI_CSWAP_GT, FI_MSWAP, FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC);
    numbers!(facts, endpoint: FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV);
    numbers!(facts, eq: FI_AV_COMPLETE, FI_MR_COMPLETE,
        FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_MUTEX_COND, FI_WAIT_YIELD, FI_CQ_FORMAT_UNSPEC, FI_CQ_FORMAT_CONTEXT,
        FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_TAGGED);
    numbers!(facts, errno:
        FI_ENOMSG, FI_EAGAIN, FI_EINVAL, FI_ENOSYS, FI_ENODATA, FI_ENOMEM, FI_EIO, FI_EBUSY, FI_EOPNOTSUPP, FI_ENOKEY,
        FI_EMSGSIZE, FI_ECONNABORTED, FI_EACCES, FI_ECANCELED, FI_ETIMEDOUT, FI_ETOOSMALL,
        FI_EAVAIL, FI_ENOEQ, FI_ENOAV, FI_ETRUNC);
    facts
}

/// Members that only version 2 has.
fn newer_facts() -> Facts {
    let mut facts = Facts::new();
    whole!(facts, "struct fi_domain_attr" = fabric::DomainAttr:
        max_ep_auth_key, max_group_id);
    whole!(facts, "struct fi_ops_fabric" = fabric::FabricOps: size);
    whole!(facts, "struct fi_ops_domain" = domain::DomainOps: size);
    members!(facts, "struct fi_ops_av" = domain::AvOps: size);
    facts
}

/// Compiles the program with the headers of a folder and runs it; `None` if that fails.
fn printed(facts: &Facts, headers: &Path) -> Option<String> {
    let mut source = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <rdma/fabric.h>\n\
         #include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n#include <rdma/fi_cm.h>\n\
         #include <rdma/fi_tagged.h>\n#include <rdma/fi_rma.h>\n#include <rdma/fi_atomic.h>\n\
         #include <rdma/fi_eq.h>\n#include <rdma/fi_errno.h>\n\
         #include <rdma/providers/fi_prov.h>\nint main(void) {\n",
    );
    for (expression, _) in facts {
        let _written = writeln!(
            source,
            "printf(\"%llu\\n\", (unsigned long long) ({expression}));"
        );
    }
    source += "return 0; }\n";
    let directory = tempfile::tempdir().expect("a directory");
    let program = directory.path().join("facts");
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-"])
        .arg("-I")
        .arg(headers)
        .arg("-o")
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .ok()?;
    let mut input = compiler.stdin.take().expect("a pipe");
    input
        .write_all(source.as_bytes())
        .expect("a compiler that reads");
    drop(input);
    if !compiler.wait().expect("a compiler that ends").success() {
        return None;
    }
    let output = Command::new(program).output().expect("it runs");
    Some(String::from_utf8(output.stdout).expect("digits"))
}

#[test]
fn declarations_match_the_installed_headers() {
    let has_headers = std::path::Path::new("/usr/include/rdma/providers/fi_prov.h").exists();
    if !has_headers {
        let required = std::env::var_os("DIPOLE_REQUIRE_LAUNCHERS").is_some();
        assert!(
            !required,
            "the headers of libfabric are missing (libfabric-dev)"
        );
        eprintln!("SKIPPED: the headers of libfabric are missing (libfabric-dev)");
        return;
    }
    compare(&facts(), Path::new("/usr/include"));
}

fn compare(facts: &Facts, headers: &Path) {
    let printed = printed(facts, headers).expect("the program compiles");
    let found: Vec<&str> = printed.lines().collect();
    assert_eq!(found.len(), facts.len());
    for ((expression, ours), theirs) in facts.iter().zip(found) {
        assert_eq!(ours.to_string(), theirs, "{expression}");
    }
}

#[test]
fn declarations_match_the_headers_of_version_2() {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test
        .ancestors()
        .nth(3)
        .expect("deps lies in target/PROFILE");
    let folder = target.join("mpi/libfabric-2");
    if !folder.join("ready").exists() {
        let required = std::env::var_os("DIPOLE_REQUIRE_WHEELS");
        let missing =
            "the headers of libfabric 2 do not exist (`cargo xtask mpi prepare` downloads them)";
        assert!(required.is_none_or(|value| value != "1"), "{missing}");
        eprintln!("SKIPPED: {missing}");
        return;
    }
    let headers = folder.join("usr/include");
    let version = vec![("FI_MAJOR_VERSION".to_owned(), 2)];
    compare(&version, &headers);
    let all = facts().into_iter().chain(newer_facts()).collect();
    compare(&all, &headers);
}
