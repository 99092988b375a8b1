/* Invalid operations of two processes: each fails with its own error, and does not affect others. */
#include "pair.h"

enum { LONG = 1 << 20 };

static char buffer[LONG], area[LONG];

/* Waits for the next completion, which must be an error if `fails` is set. */
static struct fi_cq_err_entry next(int fails)
{
    struct fi_cq_tagged_entry entry = {0};
    struct fi_cq_err_entry error = {0};
    ssize_t got;
    int turns = 0;
    while ((got = fi_cq_sread(cq, &entry, 1, NULL, 1000)) == -FI_EAGAIN)
        CHECK(++turns < SECONDS, "no completion");
    if (got == -FI_EAVAIL) {
        CHECK(fi_cq_readerr(cq, &error, 0) == 1, "no error");
        CHECK(error.err == fails, "failed: %s, not %s", fi_strerror(error.err),
              fails ? fi_strerror(fails) : "at all");
        CHECK(fi_cq_strerror(cq, error.prov_errno, error.err_data, NULL, 0), "no text");
        return error;
    }
    CHECK(got == 1 && !fails, "%zd; it should have failed with %s", got, fi_strerror(fails));
    error.op_context = entry.op_context;
    error.len = entry.len;
    return error;
}

static void together(void)
{
    char byte = 0;
    tell(&byte, 1);
    hear(&byte, 1);
}

/* Hints that the offer does not meet, and hints that it just meets. */
static void hinted(void)
{
    struct fi_info *found;
    for (int turn = 0; turn < 12; turn++) {
        struct fi_info *hints = fi_allocinfo();
        hints->fabric_attr->prov_name = strdup("dipole");
        int suits = 0;
        switch (turn) {
        case 0: hints->ep_attr->type = FI_EP_MSG; break;
        case 1: hints->ep_attr->type = FI_EP_DGRAM; break;
        case 2: hints->caps = FI_TAGGED | FI_HMEM; break;
        case 3: hints->caps = FI_COLLECTIVE; break;
        case 4: hints->addr_format = FI_SOCKADDR_IN; break;
        case 5: hints->tx_attr->inject_size = (size_t)-1; break;
        case 6: hints->ep_attr->max_msg_size = (size_t)-1; break;
        case 7: hints->domain_attr->data_progress = FI_PROGRESS_AUTO; break;
        case 8: hints->domain_attr->name = strdup("another"); break;
        case 9: hints->tx_attr->msg_order = ~0ull; break;
        case 10: hints->rx_attr->iov_limit = 1000; break;
        default: suits = 1; hints->caps = FI_TAGGED; hints->mode = ~0ull;
        }
        int result = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &found);
        CHECK(result == (suits ? 0 : -FI_ENODATA), "hints %d: %s", turn, fi_strerror(-result));
        if (suits)
            fi_freeinfo(found);
        fi_freeinfo(hints);
    }
}

static void refused(void)
{
    fi_addr_t number = 7;
    CHECK(fi_inject(ep, area, info->tx_attr->inject_size + 1, other) == -FI_EMSGSIZE, "fi_inject");
    CHECK(fi_send(ep, area, 8, NULL, 12345, NULL) == -FI_EINVAL, "a send to an unknown index was accepted");
    CHECK(fi_send(ep, area, (size_t)-1, NULL, other, NULL) == -FI_EINVAL, "too long");
    CHECK(fi_av_insert(av, area, 1, &number, 0, NULL) == 0, "bytes that are not a name were inserted");
    CHECK(number == FI_ADDR_NOTAVAIL, "bytes that are not a name have an index");
    number = 12345;
    CHECK(fi_av_remove(av, &number, 1, 0) == -FI_EINVAL, "a removal of an unknown index was accepted");
    struct fid_ep *scalable;
    for (int turn = 0; turn < 2; turn++)
        CHECK(fi_scalable_ep(domain, info, &scalable, NULL) == -FI_ENOSYS, "fi_scalable_ep");
    CHECK(fi_close(&domain->fid) == -FI_EBUSY, "a domain in use");
    CHECK(fi_close(&cq->fid) == -FI_EBUSY, "a queue in use");
}

/* Damaged names are refused at once, and the names next to them are not. */
static void spoiled(void)
{
    enum { LONGEST = 64 };
    char names[2 * LONGEST];
    size_t length = LONGEST;
    fi_addr_t numbers[2];
    did(fi_av_lookup(av, other, names, &length), "fi_av_lookup");
    CHECK(length <= LONGEST, "%zu bytes of a name", length);
    memcpy(names + length, names, length);
    for (size_t bit = 0; bit < 8 * length; bit++) {
        names[bit / 8] ^= 1 << bit % 8;
        CHECK(fi_av_insert(av, names, 2, numbers, 0, NULL) == 1, "bit %zu was not noticed", bit);
        names[bit / 8] ^= 1 << bit % 8;
        CHECK(numbers[0] == FI_ADDR_NOTAVAIL, "a damaged name has an index");
        did(fi_av_remove(av, numbers + 1, 1, 0), "fi_av_remove");
        CHECK(fi_send(ep, area, 8, NULL, numbers[0], NULL) == -FI_EINVAL, "a send to a damaged name was accepted");
    }
    did(fi_av_insert(av, names, 1, &other, 0, NULL) - 1, "fi_av_insert");
    together();
}

/* Messages longer than their receives, short and long. */
static void truncated(void)
{
    size_t lengths[] = {100, 8000, LONG};
    for (int i = 0; i < 3; i++) {
        if (is_parent) {
            did(fi_tsend(ep, area, lengths[i], NULL, other, 1, NULL), "fi_tsend");
            next(0);
            continue;
        }
        memset(buffer, 1, sizeof buffer);
        did(fi_trecv(ep, buffer, 10, NULL, other, 1, 0, buffer), "fi_trecv");
        struct fi_cq_err_entry error = next(FI_ETRUNC);
        CHECK(error.op_context == buffer && error.olen == lengths[i] - 10, "%zu lost", error.olen);
        CHECK(buffer[9] == 0 && buffer[10] == 1, "written past the end of the buffer");
    }
    together();
}

static void cancelled(void)
{
    did(fi_trecv(ep, buffer, 10, NULL, FI_ADDR_UNSPEC, 2, 0, buffer), "fi_trecv");
    did(fi_cancel(&ep->fid, buffer), "fi_cancel");
    CHECK(next(FI_ECANCELED).op_context == buffer, "another operation");
    together();
}

/* A stopped process is not gone: operations keep waiting for it. */
static void stopped(void)
{
    if (!is_parent) {
        raise(SIGSTOP);
        did(fi_tsend(ep, area, 8, NULL, other, 3, NULL), "fi_tsend");
        next(0);
        return;
    }
    int status;
    struct fi_cq_tagged_entry entry;
    did(fi_trecv(ep, buffer, 8, NULL, other, 3, 0, buffer), "fi_trecv");
    CHECK(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status), "waitpid");
    CHECK(fi_cq_sread(cq, &entry, 1, NULL, 2500) == -FI_EAGAIN, "a stopped peer was reported as gone");
    CHECK(!kill(child, SIGCONT), "kill");
    CHECK(next(0).op_context == buffer, "another operation");
}

/* Operations that wait for a killed process fail: a receive that names it, a long message. */
static void killed(void)
{
    if (!is_parent) {
        together();
        pause();
    }
    together();
    did(fi_trecv(ep, buffer, 8, NULL, other, 4, 0, buffer), "fi_trecv");
    did(fi_tsend(ep, area, LONG, NULL, other, 4, area), "fi_tsend");
    CHECK(!kill(child, SIGKILL), "kill");
    void *first = next(FI_ECONNABORTED).op_context, *second = next(FI_ECONNABORTED).op_context;
    CHECK(first != second && (first == buffer || first == area), "others failed");
    ssize_t sent = fi_tsend(ep, area, 8, NULL, other, 4, area);
    CHECK(sent == -FI_ECONNABORTED || sent == 0, "to a dead one: %s", fi_strerror((int)-sent));
}

int main(void)
{
    divide();
    open_domain();
    open_queue(FI_WAIT_UNSPEC);
    meet();
    hinted();
    refused();
    together();
    spoiled();
    truncated();
    cancelled();
    stopped();
    killed();
    close_all();
    puts("failures: right");
    return 0;
}
