C     Calls every subroutine and function without the module.
C
C     fortran77: as expected
      program main
      external spmd
      integer wanted, bsp_nprocs
      common /start/ wanted
      external bsp_nprocs
      call bsp_init(spmd)
      wanted = bsp_nprocs()
      call spmd()
      end

      subroutine check(is, text)
      logical is
      character*(*) text
      if (.not. is) call bsp_abort(text)
      end

      subroutine add(res, left, right, nbytes)
      integer res, left, right, nbytes
      res = left + right + nbytes - 4
      end

      subroutine spmd()
      integer wanted
      common /start/ wanted
      integer p, me, right, left, i, status, count, bytes, same
      integer own, other, got, tag, all(64), many(64)
      double precision begin, wait
      integer bsp_nprocs, bsp_pid, bsp_all, bsp_any, bsp_constanti
      integer bsp_sumi, bsp_sumi_prefix, bsp_producti, bsp_mini
      integer bsp_producti_prefix, bsp_mini_prefix, bsp_maxi_prefix
      integer bsp_maxi, bsp_sorti, bsp_nhalf
      real bsp_sumr, bsp_sumr_prefix, bsp_productr, bsp_minr, bsp_maxr
      real bsp_productr_prefix, bsp_minr_prefix, bsp_maxr_prefix
      real bsp_sortr
      double precision bsp_sumd, bsp_sumd_prefix, bsp_productd
      double precision bsp_productd_prefix, bsp_mind, bsp_maxd
      double precision bsp_mind_prefix, bsp_maxd_prefix, bsp_sortd
      double precision bsp_time, bsp_dtime, bsp_cputime, bsp_predict
      double precision bsp_s, bsp_l, bsp_g
      external add

      call bsp_begin(wanted)
      p = bsp_nprocs()
      me = bsp_pid()
      right = mod(me + 1, p)
      left = mod(me + p - 1, p)
      begin = bsp_time()
      own = me
      other = -1
      got = -1

      call bsp_push_reg(other, 4)
      call bsp_pushregister(own, 4)
      call bsp_sync()
      call bsp_put(right, own, other, 0, 4)
      call bsp_get(right, own, 0, got, 4)
      call bsp_sync()
      call check(other .eq. left .and. got .eq. right, 'put, get')
      call bsp_hpput(left, own, other, 0, 4)
      call bsp_hpget(left, own, 0, got, 4)
      call bsp_sync()
      call check(other .eq. right .and. got .eq. left, 'hpput, hpget')
      call bsp_direct_get(me, own, 0, got, 4)
      call check(got .eq. me, 'direct_get')
      call bsp_pop_reg(other)
      call bsp_popregister(own)

      i = 4
      call bsp_set_tagsize(i)
      call check(i .eq. 0, 'the size of tags before')
      call bsp_sync()
      i = 4
      call bsp_set_tag_size(i)
      call check(i .eq. 4, 'the size of tags')
      tag = 10 * me
      call bsp_send(right, tag, own, 4)
      call bsp_hpsend(right, tag, own, 4)
      call bsp_sync()
      call bsp_qsize(count, bytes)
      call check(count .eq. 2 .and. bytes .eq. 8, 'the queue')
      call bsp_bsmp_info(count, bytes)
      call check(count .eq. 2 .and. bytes .eq. 8, 'the queue')
      do 10 i = 1, 2
         call bsp_get_tag(status, got)
         call check(status .eq. 4 .and. got .eq. 10 * left, 'the tag')
         call bsp_move(got, 4)
         call check(got .eq. left, 'the payload')
   10 continue
      call bsp_get_tag(status, got)
      call check(status .eq. -1, 'the empty queue')

      call bsp_bcast(p - 1, own, got, 4)
      call check(got .eq. p - 1, 'bcast')
      call bsp_allgather(own, all, 4)
      call check(all(p) .eq. p - 1 .and. all(1) .eq. 0, 'allgather')
      do 20 i = 1, p
         many(i) = me * p + i - 1
   20 continue
      call bsp_total_exchange(many, all, 4)
      call check(all(p) .eq. (p - 1) * p + me, 'total exchange')
      call bsp_gather(0, own, all, 4)
      call check(me .gt. 0 .or. all(p) .eq. p - 1, 'gather')
      call bsp_scatter(0, many, got, 4)
      call check(got .eq. me, 'scatter')
      same = p * (p - 1) / 2
      call bsp_fold(add, own, got, 4)
      call check(got .eq. same, 'fold')
      call bsp_scan(add, own, got, 4)
      call check(got .eq. me * (me + 1) / 2, 'scan')
      call bsp_reduce(0, add, own, got, 4)
      call check(me .gt. 0 .or. got .eq. same, 'reduce')

      call check(bsp_all(1) .eq. 1 .and. bsp_any(0) .eq. 0, 'all, any')
      call check(bsp_constanti(p) .eq. 1, 'constant')
      call check(bsp_sumi(me) .eq. same, 'sum')
      call check(bsp_sumi_prefix(1) .eq. me + 1, 'sum')
      call check(bsp_producti(2) .eq. 2**p, 'product')
      call check(bsp_producti_prefix(2) .eq. 2**(me + 1), 'product')
      call check(bsp_mini(me) .eq. 0 .and. bsp_maxi(-me) .eq. 0, 'min')
      call check(bsp_mini_prefix(-me) .eq. -me, 'min')
      call check(bsp_maxi_prefix(-me) .eq. 0, 'max')
      call check(bsp_sumr(0.5) .eq. 0.5 * p, 'sum')
      call check(bsp_sumr_prefix(0.5) .eq. 0.5 * (me + 1), 'sum')
      call check(bsp_productr(2.0) .eq. 2.0**p, 'product')
      call check(bsp_productr_prefix(2.0) .eq. 2.0**(me + 1), 'product')
      call check(bsp_minr(real(me)) .eq. 0, 'min')
      call check(bsp_maxr(real(me)) .eq. p - 1, 'max')
      call check(bsp_minr_prefix(real(-me)) .eq. -me, 'min')
      call check(bsp_maxr_prefix(real(-me)) .eq. 0, 'max')
      call check(bsp_sumd(0.5d0) .eq. 0.5 * p, 'sum')
      call check(bsp_sumd_prefix(0.5d0) .eq. 0.5 * (me + 1), 'sum')
      call check(bsp_productd(2d0) .eq. 2d0**p, 'product')
      call check(bsp_productd_prefix(2d0) .eq. 2d0**(me + 1), 'product')
      call check(bsp_mind(dble(me)) .eq. 0, 'min')
      call check(bsp_maxd(dble(me)) .eq. p - 1, 'max')
      call check(bsp_mind_prefix(dble(-me)) .eq. -me, 'min')
      call check(bsp_maxd_prefix(dble(-me)) .eq. 0, 'max')
      call check(bsp_sorti(p - me) .eq. me + 1, 'sort')
      call check(bsp_sortr(real(p - me)) .eq. me + 1, 'sort')
      call check(bsp_sortd(dble(p - me)) .eq. me + 1, 'sort')

      call check(bsp_predict(0, 0d0, 0d0) .ge. -1, 'predict')
      call check(min(bsp_s(), bsp_l(), bsp_g()) .ge. -1, 'parameters')
      call check(bsp_nhalf() .ge. -1, 'parameters')
      wait = bsp_time()
      call check(wait .ge. begin .and. bsp_dtime() .ge. 0, 'clocks')
      call check(bsp_cputime() .ge. 0, 'clocks')
      call bsp_sync()
      if (me .eq. 0) print '(a)', 'fortran77: as expected'
      call bsp_end()
      end
